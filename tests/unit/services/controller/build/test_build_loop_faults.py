"""The build loop among documents it cannot read, events it cannot tell, and nodes that flap."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import StoreError
from services.contracts.events import EventKind
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.build_policy import planning_names
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import RetryPolicy
from services.controller.interfaces import NodePool, TaskState, TaskStatus
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_loops import settled

NEWER = b'{"of": "a newer version"}'
GRACE_S = 60.0
PACE = BuildPace(
    nodes_gone_after_s=GRACE_S, waits_after_s=300.0, retry=RetryPolicy(first_delay_s=0.0)
)


@dataclass
class World:
    """A store, a worker, nodes and a clock, and loops over them."""

    store: ObstoreArtifactStore
    registry: Registry
    worker: world.InstantWorker
    nodes: list[NodePool]
    state: FleetState
    now_s: float = 0.0

    def pools(self) -> list[NodePool]:
        return self.nodes

    def loop(self) -> BuildLoop:
        return BuildLoop(
            self.registry, self, self.worker, self.state, pace=PACE, clock=lambda: self.now_s
        )

    def add_model(self, name: str, **changes: Any) -> None:
        self.registry.add_model_version(
            name=name,
            master=world.MASTER,
            source="s",
            source_fingerprint="0",
            recipe=Recipe(**changes),
        )

    def put(self, key: str, data: bytes = NEWER) -> None:
        self.store.create(key, data)

    def recorded(self) -> Counter[EventKind]:
        return Counter(event.kind for _, event in self.registry.last_events(1000))


@pytest.fixture
def here(tmp_path: Path) -> World:
    store = open_store(str(tmp_path / "store"))
    registry = Registry(store, tmp_path / "cache")
    made = World(store, registry, world.InstantWorker(registry), [world.pool()], FleetState("", 0))
    made.add_model("m")
    return made


async def test_a_trail_that_fails_keeps_nothing_from_being_built(
    here: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> object:
        raise StoreError("no room for events")

    monkeypatch.setattr(here.registry, "append_event", fails)
    await settled(here.loop(), here.worker)
    assert len(here.registry.engines()) == 2
    assert "no room for events" in caplog.text
    monkeypatch.undo()
    await settled(here.loop(), here.worker)
    assert here.recorded()[EventKind.BUILD_FINISHED] == 2


@pytest.mark.parametrize("data", [NEWER, b"half an eve"])
async def test_an_event_that_cannot_be_read_keeps_nothing_from_being_built(
    here: World, data: bytes
) -> None:
    loop = here.loop()
    await loop.sync()
    end = here.registry.event_end()
    here.put(f"events/{end.day}/{end.number + 1:06d}.json", data)
    await settled(loop, here.worker)
    assert len(here.registry.engines()) == 2
    assert here.recorded()[EventKind.BUILD_FINISHED] == 2


async def test_a_record_that_cannot_be_read_stops_its_own_model_alone(
    here: World, caplog: pytest.LogCaptureFixture
) -> None:
    other = world.MASTER.model_copy(update={"digest": "d" * 64})
    here.registry.add_model_version(
        name="n", master=other, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    foreign = world.key(master_digest=other.digest)
    here.registry.write_plan(world.plan((foreign,), model="n"))
    here.put(f"builds/{foreign.digest()}/000001.json")
    loop = here.loop()
    await settled(loop, here.worker)
    assert {task.model for task in here.worker.launched} == {"m"}
    assert len(here.registry.engines()) == 2
    lines = [r.message for r in caplog.records if "nothing is built for model 'n'" in r.message]
    assert len(lines) == 1


async def test_a_version_that_was_removed_and_serves_still_is_no_fault(
    here: World, caplog: pytest.LogCaptureFixture
) -> None:
    here.registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="2"
    )
    here.registry.remove_model("m", 1)
    for attached in (1, 9):
        here.state.attach(_report(attached))
    await here.loop().sync()
    lines = [r.message for r in caplog.records if "nothing is built for" in r.message]
    assert len(lines) == 1
    assert lines[0].startswith("nothing is built for model m version 9, which serves: ")


async def test_a_task_whose_start_cannot_be_read_is_not_ours(
    here: World, caplog: pytest.LogCaptureFixture
) -> None:
    here.put("tasks/build-of-a-newer/started.json")
    here.worker.tasks["build-of-a-newer"] = None  # type: ignore[assignment]
    here.worker.ended["build-of-a-newer"] = TaskStatus(state=TaskState.ENDED)
    loop = here.loop()
    for _ in range(2):
        await loop.sync()
    assert "build-of-a-newer" in here.worker.tasks
    assert len(here.worker.launched) == 1
    assert len([r for r in caplog.records if "build-of-a-newer" in r.message]) == 1


async def test_an_end_that_cannot_be_read_is_an_attempt_that_is_over(here: World) -> None:
    names = planning_names(FleetView(), world.version(), world.pool(), PACE.retry)
    here.put(f"tasks/{names[0]}/ended.json")
    await settled(here.loop(), here.worker)
    assert [task.name for task in here.worker.launched] == [names[1]]
    assert len(here.registry.engines()) == 2


async def test_a_report_that_cannot_be_read_keeps_nothing_from_being_built_or_recorded(
    here: World,
) -> None:
    unreadable = _report(2)
    unreadable.device_facts_json = b"[" * 100_000
    here.state.attach(unreadable)
    loop = here.loop()
    running = asyncio.create_task(loop.run())
    try:
        await _until(lambda: bool(here.worker.launched))
        replica = here.state.attach(_report(1))
        await _until(lambda: here.recorded()[EventKind.FALLBACK_SERVING] == 1)
        # As soon as its connection ends, long before the next pass.
        here.state.detach(replica)
        await _until(lambda: here.recorded()[EventKind.REPLICA_LOST] == 1)
    finally:
        running.cancel()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        # A store sends no notifications.
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _report(version: int, state: Any = fleet.REPLICA_STATE_READY) -> fleet.ReplicaReport:
    facts = DeviceFacts(generation=world.GENERATION, name="x", memory_gib=1)
    return fleet.ReplicaReport(
        replica_id=f"r{version}",
        model_name="m",
        model_version=version,
        state=state,
        device_facts_json=facts.canonical_json(),
    )


@pytest.mark.parametrize(
    "gone", [[], [NodePool(node_class=world.NODE_CLASS, source="ray", num_nodes=0)]]
)
async def test_a_build_outlives_a_flap_of_its_nodes_and_a_restart_during_it(
    here: World, gone: list[NodePool]
) -> None:
    here.registry.write_plan(world.plan())
    await here.loop().sync()
    (name,) = here.worker.tasks
    here.nodes = gone
    restarted = here.loop()
    await restarted.sync()
    here.now_s += GRACE_S - 1
    await restarted.sync()
    assert list(here.worker.tasks) == [name]
    # There again in between: the time counts anew.
    here.nodes = [world.pool()]
    await restarted.sync()
    here.nodes = gone
    here.now_s += 2
    await restarted.sync()
    assert list(here.worker.tasks) == [name]
    here.now_s += GRACE_S
    await restarted.sync()
    assert name not in here.worker.tasks
    assert here.registry.build_records(world.KEYS[0].digest()) == []


async def test_a_cordoned_node_keeps_its_build(here: World) -> None:
    here.registry.write_plan(world.plan())
    loop = here.loop()
    await loop.sync()
    here.nodes = [
        NodePool(node_class=world.NODE_CLASS, source="kubernetes", num_nodes=0, num_known=1)
    ]
    for _ in range(2):
        here.now_s += 2 * GRACE_S
        await loop.sync()
    assert len(here.worker.tasks) == 1


async def test_a_task_that_waits_is_told_after_a_while_and_charged_to_nobody(
    here: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    here.registry.write_plan(world.plan())
    loop = here.loop()
    await loop.sync()
    (name,) = here.worker.tasks
    here.worker.ended[name] = TaskStatus(state=TaskState.WAITING, detail="ImagePullBackOff: i")
    await loop.sync()
    here.now_s += 299
    await loop.sync()
    assert here.recorded()[EventKind.BUILD_WAITING] == 0
    here.now_s += 1
    for _ in range(2):
        await loop.sync()
        await here.loop().sync()
    (event,) = [e for _, e in here.registry.last_events(99) if e.kind is EventKind.BUILD_WAITING]
    assert "runs nowhere yet: ImagePullBackOff: i" in event.why
    lines = [r.message for r in caplog.records if f"task {name} waits" in r.message]
    assert len(lines) == 1 + 2, "once by each of three controllers"

    here.worker.ended[name] = TaskStatus(
        state=TaskState.ENDED, detail="DeadlineExceeded", is_failed=True, is_unstarted=True
    )
    for _ in range(3):
        await loop.sync()
        assert here.registry.build_records(world.KEYS[0].digest()) == []
        assert list(here.worker.tasks) == [name]
        here.worker.ended[name] = TaskStatus(
            state=TaskState.ENDED, is_failed=True, is_unstarted=True, run="another"
        )


async def test_a_plan_of_unknown_labels_contradicts_nothing(here: World) -> None:
    """Kubernetes does not say the toolchain; a plan that has one is no proof of wrong labels."""
    silent = world.NODE_CLASS.model_copy(update={"toolchain": "", "memory_gib": 0})
    here.nodes = [world.pool(node_class=silent, source="kubernetes")]
    here.registry.write_plan(world.plan(compiler="another compiler"))
    loop = here.loop()
    await loop.sync()
    (name,) = here.worker.tasks
    here.worker.ended[name] = TaskStatus(state=TaskState.ENDED)
    await loop.sync()
    end = here.registry.task_end(name)
    assert end is not None
    assert end.detail == "it exited with code 0 and wrote no plan"


async def test_a_version_that_still_serves_gets_engines_for_new_nodes(here: World) -> None:
    """As under a RayService, or after a rollback: the newest is not the one that serves."""
    here.add_model("m", num_replicas=2)
    here.state.attach(_report(1))
    here.state.attach(_report(7))
    for version in (1, 2):
        here.registry.write_plan(world.plan(version=version))
    await settled(here.loop(), here.worker)
    assert {task.version for task in here.worker.launched} == {2}, "they share their engines"
    newer = world.NODE_CLASS.model_copy(update={"toolchain": "f" * 16})
    here.nodes = [world.pool(node_class=newer)]
    here.worker.launched.clear()
    here.worker.plan = world.plan((world.key(driver="2"),), node_class=newer)
    loop = here.loop()
    await loop.sync()
    assert [(t.version, t.node_class) for t in here.worker.launched] == [(2, newer)]
    here.worker.work()
    await loop.sync()
    assert [t.version for t in here.worker.launched] == [2, 1]
    assert here.recorded()[EventKind.MODEL_PUBLISHED] == 1


async def test_a_version_that_nobody_serves_any_more_gets_nothing(here: World) -> None:
    here.add_model("m", num_replicas=2)
    here.state.attach(_report(1, fleet.REPLICA_STATE_FAILED))
    await here.loop().sync()
    assert [task.version for task in here.worker.launched] == [2]
