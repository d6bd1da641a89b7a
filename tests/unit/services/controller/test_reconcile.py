"""The reconcile loop over a real registry; only Ray is faked."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.manifest import BlobRef, MasterRecord, ModelVersion
from services.contracts.object_store import open_store
from services.contracts.recipe import Recipe
from services.contracts.registry import Registry
from services.controller.fleet_state import FleetState
from services.controller.reconcile import ReconcileLoop
from services.controller.replica_fleet import load_function
from services.pb import fleet_v1_pb2 as fleet


class FakeFleet:
    """Records what Ray would be asked; `fault` makes the next deploys fail."""

    def __init__(self) -> None:
        self.deployed: list[tuple[str, int, dict[str, Any]]] = []
        self.removed: list[tuple[str, int]] = []
        self.fault = ""

    def start(self) -> None:
        """Nothing to start."""

    def deploy(self, name: str, version: int, args: dict[str, Any]) -> None:
        self.deployed.append((name, version, args))
        if self.fault:
            raise NotReadyError(self.fault)

    def remove(self, name: str, version: int) -> None:
        self.removed.append((name, version))

    def metrics_addresses(self) -> list[str]:
        return ["h:1"]

    def stop(self) -> None:
        """Nothing to stop."""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def _add(registry: Registry, fingerprint: str) -> ModelVersion:
    master = MasterRecord(
        digest=f"digest-{fingerprint}",
        files={"model.onnx": BlobRef(sha256="0" * 64, num_bytes=1)},
        inputs=(), outputs=(), opset=23, num_parameters=0,
    )  # fmt: skip
    return registry.add_model_version(
        name="m", master=master, recipe=Recipe(), source="s",
        source_fingerprint=fingerprint, samples=None,
    )  # fmt: skip


def _loop(registry: Registry, state: FleetState, fake: FakeFleet) -> ReconcileLoop:
    return ReconcileLoop(registry, state, fake, {"store_url": "u"}, resync_s=60)


async def _until(state: FleetState, wanted: dict[int, str]) -> None:
    async with asyncio.timeout(10):
        async for snapshot in state.watch():
            if {m.version: m.state for m in snapshot.models} == wanted:
                return


async def test_a_published_model_is_deployed_once(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    await loop.reconcile_now()
    assert fake.deployed == []
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    await loop.reconcile_now()
    assert [(name, version) for name, version, _ in fake.deployed] == [("m", 1)]
    assert list(state.snapshot().metrics_addresses) == ["h:1"]
    assert fake.deployed[0][2]["store_url"] == "u"
    assert fake.deployed[0][2]["num_replicas"] == 1


async def test_a_failed_deploy_is_shown_and_tried_again(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    _add(registry, "a")
    fake.fault = "out of memory"
    await loop.reconcile_now()
    await _until(state, {1: "UNAVAILABLE"})
    assert state.models()[0].reason == "out of memory"
    fake.fault = ""
    await loop.reconcile_now()
    await _until(state, {1: "READY"})


async def test_an_old_version_goes_only_when_the_new_one_serves(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    _add(registry, "b")
    await loop.reconcile_now()
    await _until(state, {1: "READY", 2: "READY"})
    assert fake.removed == []
    state.attach(
        fleet.ReplicaReport(
            replica_id="r", model_name="m", model_version=2, state=fleet.REPLICA_STATE_READY
        )
    )
    await loop.reconcile_now()
    await _until(state, {2: "READY"})
    assert fake.removed == [("m", 1)]


async def test_the_loop_runs_by_itself_and_ends_when_cancelled(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    _add(registry, "a")
    running = asyncio.create_task(_loop(registry, state, fake).run())
    await _until(state, {1: "READY"})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_replica_app_is_found_by_import_path_or_refused() -> None:
    assert load_function("json:dumps")({"a": 1}) == '{"a": 1}'
    with pytest.raises(InvalidRequestError, match="expected package.module:function"):
        load_function("no_such_package.module:application")
