"""The reconcile loop over a real registry; only Ray is faked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.manifest import BlobRef, MasterRecord, ModelVersion
from services.contracts.node_class import NodeClass
from services.contracts.object_store import open_store
from services.contracts.recipe import Recipe
from services.contracts.registry import Registry
from services.controller.fleet_state import FleetState
from services.controller.reconcile import ReconcileLoop
from services.controller.replica_fleet import (
    DeploymentKey,
    application_name,
    key_from_application,
    load_function,
)
from services.controller.seams import NodePool
from services.controller.surroundings import PlacedByRayService
from services.pb import fleet_v1_pb2 as fleet

OLD, NEW = "cuda-sm80", "cuda-sm90"


class FakeFleet:
    """Records what Ray would be asked.

    Attributes:
        fault: makes deployments fail.
        starting: versions that never get ready.
        broken: raised by the next question for metrics addresses.
    """

    is_placing = True
    absence = "nowhere to go"

    def __init__(self) -> None:
        self.asked: list[tuple[DeploymentKey, dict[str, Any]]] = []
        self.present: list[DeploymentKey] = []
        self.removed: list[DeploymentKey] = []
        self.fault = ""
        self.starting: set[tuple[str, int]] = set()
        self.broken: list[Exception] = []
        self.removal_fault = ""

    def start(self) -> None:
        """Nothing to start."""

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        self.asked.append((key, args))

    def deployed(self) -> list[DeploymentKey]:
        return self.present

    def is_running(self, key: DeploymentKey) -> bool:
        if self.fault:
            raise NotReadyError(self.fault)
        return key[:2] not in self.starting

    def remove(self, key: DeploymentKey) -> None:
        if self.removal_fault:
            raise RuntimeError(self.removal_fault)
        self.removed.append(key)

    def metrics_addresses(self) -> list[str]:
        if self.broken:
            raise self.broken.pop()
        return ["h:1"]

    def stop(self, *, is_drained: bool) -> None:
        """Nothing to stop."""


class Nodes:
    """A source of nodes as the test wants them."""

    def __init__(self, *generations: str) -> None:
        self.generations = list(generations)
        self.fault = ""

    def pools(self) -> list[NodePool]:
        if self.fault:
            raise NotReadyError(self.fault)
        return [
            NodePool(node_class=NodeClass(generation=g), source="ray", num_nodes=1)
            for g in self.generations
        ]


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


def _loop(
    registry: Registry, state: FleetState, fake: FakeFleet, nodes: Nodes | None = None
) -> ReconcileLoop:
    return ReconcileLoop(
        registry, nodes or Nodes(OLD), state, fake, {"store_url": "u"}, resync_s=60,
        withdraw_after_s=0,
    )  # fmt: skip


def _ready(version: int, generation: str, name: str = "r") -> fleet.ReplicaReport:
    return fleet.ReplicaReport(
        replica_id=name,
        model_name="m",
        model_version=version,
        state=fleet.REPLICA_STATE_READY,
        device_facts_json=json.dumps({"generation": generation}).encode(),
    )


async def _until(state: FleetState, wanted: dict[int, str]) -> None:
    async with asyncio.timeout(10):
        async for snapshot in state.watch():
            if {m.version: m.state for m in snapshot.models} == wanted:
                return


async def test_a_published_model_is_deployed_once(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    await loop.reconcile_now()
    assert fake.asked == []
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    await loop.reconcile_now()
    assert [key for key, _ in fake.asked] == [("m", 1, OLD)]
    assert list(state.snapshot().metrics_addresses) == ["h:1"]
    args = fake.asked[0][1]
    assert (args["store_url"], args["num_replicas"], args["generation"]) == ("u", 1, OLD)


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
    state.attach(_ready(2, OLD))
    await loop.reconcile_now()
    await _until(state, {2: "READY"})
    assert fake.removed == [("m", 1, OLD)]


async def _replace(registry: Registry, state: FleetState, loop: ReconcileLoop) -> None:
    """Publish version 2 and have a replica of it ready."""
    _add(registry, "b")
    await loop.reconcile_now()
    async with asyncio.timeout(10):
        async for snapshot in state.watch():
            if any(m.version == 2 and m.state == "READY" for m in snapshot.models):
                break
    state.attach(_ready(2, OLD))


async def test_an_old_version_that_never_got_ready_goes_too(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = _loop(registry, state, fake)
    fake.starting.add(("m", 1))
    _add(registry, "a")
    await loop.reconcile_now()
    await _replace(registry, state, loop)
    await loop.reconcile_now()
    await _until(state, {2: "READY"})
    assert fake.removed == [("m", 1, OLD)]


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
    await loop._deployments.withdrawn()
    assert f"retiring m version 1 on {OLD} failed" in caplog.text
    assert fake.removed == []
    fake.removal_fault = ""
    await loop.reconcile_now()
    await _until(state, {2: "READY"})
    assert fake.removed == [("m", 1, OLD)]


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
    tasks = [d.task for d in loop._deployments._known.values() if d.task]
    await asyncio.wait(tasks)


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
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=0.01)
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


async def test_a_new_generation_is_served_too_and_one_that_left_is_withdrawn(
    registry: Registry,
) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD)
    loop = _loop(registry, state, fake, nodes)
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    nodes.generations.append(NEW)
    await loop.reconcile_now()
    assert state.models()[0].num_replicas_wanted == 2
    await asyncio.gather(*(d.task for d in loop._deployments._known.values() if d.task))
    assert [key.generation for key, _ in fake.asked] == [OLD, NEW]
    nodes.generations.remove(OLD)
    await loop.reconcile_now()
    await loop._deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]
    assert state.models()[0].num_replicas_wanted == 1


async def test_a_generation_that_is_away_for_a_moment_keeps_its_replicas(
    registry: Registry,
) -> None:
    state, fake, nodes, now = FleetState("u", 1), FakeFleet(), Nodes(OLD, NEW), [0.0]
    loop = ReconcileLoop(
        registry, nodes, state, fake, {}, resync_s=60, withdraw_after_s=10, clock=lambda: now[0]
    )
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    nodes.generations.remove(OLD)
    now[0] = 10
    await loop.reconcile_now()
    await loop._deployments.withdrawn()
    assert fake.removed == []
    now[0] = 11
    await loop.reconcile_now()
    await loop._deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]


async def test_unknown_nodes_change_nothing(registry: Registry) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD)
    loop = _loop(registry, state, fake, nodes)
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    nodes.fault = "Ray is away"
    await loop.reconcile_now()
    await loop._deployments.withdrawn()
    assert fake.removed == []


async def test_the_new_version_must_serve_where_the_old_one_does(registry: Registry) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD, NEW)
    loop = _loop(registry, state, fake, nodes)
    _add(registry, "a")
    await loop.reconcile_now()
    _add(registry, "b")
    await loop.reconcile_now()
    await _until(state, {1: "READY", 2: "READY"})
    state.attach(_ready(2, NEW))
    await loop.reconcile_now()
    await loop._deployments.withdrawn()
    assert fake.removed == [("m", 1, NEW)]


async def test_what_an_earlier_controller_deployed_is_withdrawn_when_nobody_wants_it(
    registry: Registry,
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    gone = DeploymentKey("gone", 3, OLD)
    fake.present = [gone, DeploymentKey("m", 1, OLD)]
    loop = _loop(registry, state, fake)
    _add(registry, "a")
    await loop.reconcile_now()
    await loop._deployments.withdrawn()
    assert fake.removed == [gone]
    assert {m.version: m.state for m in state.models()} == {1: "READY"}


async def test_without_any_node_a_model_says_so(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    _add(registry, "a")
    await _loop(registry, state, fake, Nodes()).reconcile_now()
    (model,) = state.models()
    assert (model.state, model.reason) == (
        "UNAVAILABLE",
        "nowhere to go",
    )


def test_applications_are_named_after_deployments() -> None:
    key = DeploymentKey("my-model.2", 12, "cpu-x86_64-v3")
    assert key_from_application(application_name(key)) == key
    assert key_from_application("somebody-elses") is None
    assert key_from_application("smelt:of:somebody") is None


async def test_an_earlier_controllers_deployment_is_kept_unless_nobody_of_it_attaches(
    registry: Registry,
) -> None:
    state, fake, now = FleetState("u", 1), FakeFleet(), [0.0]
    key = DeploymentKey("m", 1, OLD)
    fake.present = [key]
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now[0])
    _add(registry, "a")
    await loop.reconcile_now()
    now[0] = 60
    await loop.reconcile_now()
    assert fake.asked == []
    now[0] = 61
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    assert [asked for asked, _ in fake.asked] == [key]


async def test_an_earlier_controllers_deployment_that_attached_is_never_deployed_again(
    registry: Registry,
) -> None:
    state, fake, now = FleetState("u", 1), FakeFleet(), [0.0]
    fake.present = [DeploymentKey("m", 1, OLD)]
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now[0])
    _add(registry, "a")
    attached = state.attach(_ready(1, OLD))
    await loop.reconcile_now()
    state.detach(attached)
    now[0] = 1000
    await loop.reconcile_now()
    assert fake.asked == []


async def test_an_earlier_controllers_deployment_that_failed_is_deployed_again(
    registry: Registry,
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    key = DeploymentKey("m", 1, OLD)
    fake.present, fake.fault = [key], "out of memory"
    loop = _loop(registry, state, fake)
    _add(registry, "a")
    await loop.reconcile_now()
    await _until(state, {1: "UNAVAILABLE"})
    assert fake.asked == []
    fake.fault = ""
    await loop.reconcile_now()
    await _until(state, {1: "READY"})
    assert [asked for asked, _ in fake.asked] == [key]


async def test_where_a_ray_service_places_what_attached_is_what_is_served(
    registry: Registry,
) -> None:
    state = FleetState("u", 1)
    loop = ReconcileLoop(registry, Nodes(OLD), state, PlacedByRayService(state), {}, resync_s=60)
    _add(registry, "a")
    _add(registry, "b")
    running = asyncio.create_task(loop.run())
    await _until(state, {2: "UNAVAILABLE"})
    assert "serveConfigV2" in state.models()[0].reason
    # A rollback: the older version serves, on a generation that no node is labelled with.
    attached = state.attach(_ready(1, NEW))
    await _until(state, {1: "READY", 2: "UNAVAILABLE"})
    state.detach(attached)
    await _until(state, {2: "UNAVAILABLE"})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
