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
    """Records what Ray would be asked.

    Attributes:
        fault: makes deployments fail.
        starting: versions that never get ready.
        broken: raised by the next question for metrics addresses.
    """

    def __init__(self) -> None:
        self.deployed: list[tuple[str, int, dict[str, Any]]] = []
        self.removed: list[tuple[str, int]] = []
        self.fault = ""
        self.starting: set[tuple[str, int]] = set()
        self.broken: list[Exception] = []
        self.removal_fault = ""

    def start(self) -> None:
        """Nothing to start."""

    def deploy(self, name: str, version: int, args: dict[str, Any]) -> None:
        self.deployed.append((name, version, args))

    def is_running(self, name: str, version: int) -> bool:
        if self.fault:
            raise NotReadyError(self.fault)
        return (name, version) not in self.starting

    def remove(self, name: str, version: int) -> None:
        if self.removal_fault:
            raise RuntimeError(self.removal_fault)
        self.removed.append((name, version))

    def metrics_addresses(self) -> list[str]:
        if self.broken:
            raise self.broken.pop()
        return ["h:1"]

    def stop(self) -> None:
        """Nothing to stop."""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def _add(registry: Registry, fingerprint: str, name: str = "m") -> ModelVersion:
    master = MasterRecord(
        digest=f"digest-{fingerprint}",
        files={"model.onnx": BlobRef(sha256="0" * 64, num_bytes=1)},
        inputs=(), outputs=(), opset=23, num_parameters=0,
    )  # fmt: skip
    return registry.add_model_version(
        name=name, master=master, recipe=Recipe(), source="s",
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


async def _replace(registry: Registry, state: FleetState, loop: ReconcileLoop) -> None:
    """Publish version 2 and have a replica of it ready."""
    _add(registry, "b")
    await loop.reconcile_now()
    async with asyncio.timeout(10):
        async for snapshot in state.watch():
            if any(m.version == 2 and m.state == "READY" for m in snapshot.models):
                break
    state.attach(
        fleet.ReplicaReport(
            replica_id="r", model_name="m", model_version=2, state=fleet.REPLICA_STATE_READY
        )
    )


async def test_an_old_version_that_never_got_ready_goes_too(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    fake.starting.add(("m", 1))
    _add(registry, "a")
    await loop.reconcile_now()
    await _replace(registry, state, loop)
    await loop.reconcile_now()
    await _until(state, {2: "READY"})
    assert fake.removed == [("m", 1)]


async def test_an_old_version_that_failed_goes_too(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    fake.fault = "out of memory"
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "UNAVAILABLE"})
    fake.fault = ""
    await _replace(registry, state, loop)
    await loop.reconcile_now()
    await _until(state, {2: "READY"})


async def test_a_removal_that_fails_is_tried_again(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    _add(registry, "a")
    await loop.reconcile_now()
    await _replace(registry, state, loop)
    fake.removal_fault = "Serve is away"
    await loop.reconcile_now()
    await asyncio.gather(*loop._retirements.values())
    assert "retiring m version 1 failed" in caplog.text
    assert fake.removed == []
    fake.removal_fault = ""
    await loop.reconcile_now()
    await _until(state, {2: "READY"})
    assert fake.removed == [("m", 1)]


async def test_models_that_load_for_long_leave_room_for_others(registry: Registry) -> None:
    # More than the threads that asyncio has for blocking calls on any machine.
    names = [f"slow{number}" for number in range(40)]
    state, fake = FleetState("u", 1), FakeFleet()
    fake.starting = {(name, 1) for name in names}
    loop = _loop(registry, state, fake)
    for name in names:
        _add(registry, "a", name)
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(60):
        async for snapshot in state.watch():
            if len(snapshot.models) == len(names):
                break
        _add(registry, "b")
        await loop.reconcile_now()
        async for snapshot in state.watch():
            if any(m.name == "m" and m.state == "READY" for m in snapshot.models):
                break
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert all(task.done() for task in loop._deploys.values())


async def test_a_model_that_cannot_be_read_keeps_no_other_from_serving(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    _add(registry, "a")
    registry._store.create("models/newer/versions/000001.json", b'{"of": "tomorrow"}')
    await _loop(registry, state, fake).reconcile_now()
    await _until(state, {1: "READY"})
    assert "model 'newer' is left as it is" in caplog.text


async def test_the_loop_outlives_whatever_ray_raises(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    fake.broken.append(RuntimeError("no GCS"))
    loop = ReconcileLoop(registry, state, fake, {}, resync_s=0.01)
    _add(registry, "a")
    running = asyncio.create_task(loop.run())
    await _until(state, {1: "READY"})
    assert "no GCS" in caplog.text
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


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
