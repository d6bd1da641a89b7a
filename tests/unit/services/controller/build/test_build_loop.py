"""The build loop over a real store, with a worker that needs no compiler; killed at every step."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import RebuildRequest, timestamp, utc_now
from services.contracts.errors import NotReadyError
from services.contracts.events import EventKind
from services.contracts.hardware import node_class
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import BuildOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.key_status import RetryPolicy
from services.controller.interfaces import NodePool, TaskState
from services.controller.platform.combined import CombinedNodes
from tests.unit.services.controller import build_world as world

AT_ONCE = BuildPace(
    nodes_gone_after_s=0.0, retry=RetryPolicy(first_delay_s=0.0, first_timing_s=0.0)
)


class Nodes:
    """A NodeSource; None cannot be read."""

    def __init__(self, *pools: NodePool) -> None:
        self.known: list[NodePool] | None = list(pools)

    def pools(self) -> list[NodePool]:
        if self.known is None:
            raise NotReadyError("Ray is away")
        return self.known


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


@pytest.fixture
def worker(registry: Registry) -> world.InstantWorker:
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    return world.InstantWorker(registry)


def loop_on(
    registry: Registry, worker: world.InstantWorker, nodes: Nodes | None = None, **given: Any
) -> BuildLoop:
    source = CombinedNodes([nodes or Nodes(world.pool())])
    return BuildLoop(registry, source, worker, FleetState("", 0), pace=AT_ONCE, **given)


async def settled(loop: BuildLoop, worker: world.InstantWorker) -> None:
    """Pass until nothing runs any more."""
    await loop.sync()
    while worker.tasks:
        worker.work()
        await loop.sync()


def recorded(registry: Registry) -> Counter[EventKind]:
    return Counter(event.kind for _, event in registry.last_events(1000))


async def test_what_is_missing_is_built_once_and_announced(
    registry: Registry, worker: world.InstantWorker
) -> None:
    changes: list[int] = []
    loop = loop_on(registry, worker, on_store_changed=lambda: changes.append(1))
    await settled(loop, worker)
    assert changes == [1]
    assert len(registry.engines()) == 2
    await settled(loop, worker)
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 1
    assert changes == [1]


async def test_a_key_that_fails_is_given_up_after_three_attempts_until_it_is_asked_for(
    registry: Registry, worker: world.InstantWorker
) -> None:
    worker.broken = {EngineKind.OPENVINO}
    broken = world.KEYS[1].digest()
    loop = loop_on(registry, worker)
    await settled(loop, worker)
    assert [task.attempt for task in worker.launched] == [1, 2, 3]
    assert len(registry.build_records(broken)) == 3
    assert recorded(registry)[EventKind.QUARANTINED] == 1

    worker.broken.clear()
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 3, "a restart lets nobody out"
    request = RebuildRequest(
        model="m", version=1, disregarded={broken: 3}, who="ann", created_at=world.AT
    )
    registry.request_rebuild(request)
    await settled(loop, worker)
    assert len(registry.engines()) == 2
    kinds = recorded(registry)
    assert (kinds[EventKind.REBUILD_REQUESTED], kinds[EventKind.QUARANTINED]) == (1, 1)
    assert kinds[EventKind.BUILD_FAILED] == 3


async def test_what_could_not_be_measured_is_timed_again_until_it_is(
    registry: Registry, worker: world.InstantWorker
) -> None:
    found = iter([(0.6, 1.9), (1.3, 1.4)])

    def timed() -> None:
        registry.add_joint_run(world.joint_run(*next(found), created_at=timestamp(utc_now())))

    worker.timings, worker.on_timed = world.paired(0.6, 1.9), timed
    loop = loop_on(registry, worker)
    await settled(loop, worker)
    assert [len(task.key_digests) for task in worker.launched] == [0, 0, 0]
    assert [task.attempt for task in worker.launched] == [1, 1, 2]
    assert "timed again" in worker.launched[-1].reason
    assert next(found, None) is None
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 3, "it is measured now"


async def test_what_cannot_be_measured_at_all_is_left_alone_after_some_times(
    registry: Registry, worker: world.InstantWorker
) -> None:
    """Nor does a task that leaves no run lead to a busy loop, or a restart begin anew."""
    worker.timings = world.paired(0.6, 1.9)
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 1 + AT_ONCE.retry.max_timings
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 1 + AT_ONCE.retry.max_timings


async def test_a_task_that_dies_is_charged_to_the_key_it_was_at(
    registry: Registry, worker: world.InstantWorker
) -> None:
    worker.deadly = {EngineKind.ONNXRUNTIME}
    deadly, harmless = (key.digest() for key in world.KEYS)
    await settled(loop_on(registry, worker), worker)
    records = registry.build_records(deadly)
    assert [record.outcome for record in records] == [BuildOutcome.FAILED] * 3
    assert all("ended in the middle: killed" in record.reason for record in records)
    assert [engine.digest for engine in registry.engines()] == [harmless]


@pytest.mark.parametrize(("num_losses", "num_charged"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
async def test_a_node_that_is_lost_is_no_attempt_until_an_attempt_loses_two(
    registry: Registry, worker: world.InstantWorker, num_losses: int, num_charged: int
) -> None:
    """The first of them is lost by the task that plans."""
    worker.num_losses = num_losses
    await settled(loop_on(registry, worker), worker)
    assert len(registry.engines()) == 2
    records = registry.build_records(world.KEYS[0].digest())
    assert [r.outcome for r in records] == [
        *[BuildOutcome.FAILED] * num_charged, BuildOutcome.PROVEN,
    ]  # fmt: skip


async def test_an_upgrade_of_smelt_builds_again_while_the_old_engines_are_there(
    registry: Registry, worker: world.InstantWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settled(loop_on(registry, worker), worker)
    old = {engine.digest for engine in registry.engines()}
    monkeypatch.setattr(node_class, "compiler_code", lambda: "next")
    upgraded = NodeClass.from_facts(world.DEVICE)
    newer = tuple(k.model_copy(update={"builder_options": {"r": "2"}}) for k in world.KEYS)
    worker.plan = world.plan(newer, node_class=upgraded)
    nodes = Nodes(world.pool(node_class=upgraded))
    await settled(loop_on(registry, worker, nodes), worker)
    assert len(worker.launched) == 2
    published = {engine.digest for engine in registry.engines()}
    assert published == old | {key.digest() for key in newer}
    assert recorded(registry)[EventKind.TOOLCHAIN_CHANGED] == 1


async def test_where_nodes_name_no_toolchain_another_compiler_plans_anew(
    registry: Registry, worker: world.InstantWorker
) -> None:
    silent = world.NODE_CLASS.model_copy(update={"toolchain": ""})
    nodes = Nodes(world.pool(node_class=silent, source="kubernetes"))
    worker.compiler = "compiler:1"
    for _ in range(2):
        await settled(loop_on(registry, worker, nodes), worker)
    assert [task.key_digests for task in worker.launched] == [()]
    worker.compiler = "compiler:2"
    newer = (world.key(toolchain={"torch": "3"}), world.KEYS[0])
    worker.plan = world.plan(newer)
    await settled(loop_on(registry, worker, nodes), worker)
    assert [task.compiler for task in worker.launched] == ["compiler:1", "compiler:2"]
    assert newer[0].digest() in {engine.digest for engine in registry.engines()}
    assert len(registry.engines()) == 3


async def test_nodes_that_go_take_their_task_with_them_and_nobody_is_blamed(
    registry: Registry, worker: world.InstantWorker
) -> None:
    registry.write_plan(world.plan())
    nodes = Nodes(world.pool())
    loop = loop_on(registry, worker, nodes)
    await loop.sync()
    assert worker.tasks
    nodes.known = []
    await loop.sync()
    assert worker.tasks == {}
    assert registry.build_records(world.KEYS[0].digest()) == []
    kinds = recorded(registry)
    assert kinds[EventKind.GENERATION_GONE] == 1
    nodes.known = [world.pool()]
    await settled(loop, worker)
    assert len(registry.engines()) == 2
    assert recorded(registry)[EventKind.GENERATION_APPEARED] == 2


async def test_a_source_that_cannot_be_read_changes_nothing(
    registry: Registry, worker: world.InstantWorker
) -> None:
    nodes = Nodes(world.pool())
    loop = loop_on(registry, worker, nodes)
    await loop.sync()
    (name,) = worker.tasks
    nodes.known = None
    await loop.sync()
    assert list(worker.tasks) == [name]
    assert recorded(registry)[EventKind.GENERATION_GONE] == 0
    with pytest.raises(NotReadyError, match="Ray is away"):
        await loop_on(registry, worker, nodes).sync()


async def test_the_loop_looks_again_when_something_becomes_due_or_when_it_is_kicked(
    registry: Registry, worker: world.InstantWorker
) -> None:
    pace = BuildPace(resync_s=900.0, poll_s=0.01, retry=RetryPolicy(first_delay_s=0.02))
    worker.broken = {EngineKind.OPENVINO}
    nodes = Nodes(world.pool())
    loop = BuildLoop(registry, nodes, worker, FleetState("", 0), pace=pace)
    running = asyncio.create_task(loop.run())
    try:
        async with asyncio.timeout(60):
            while recorded(registry)[EventKind.QUARANTINED] == 0:
                worker.work()
                await asyncio.sleep(0.01)
            nodes.known = []
            loop.enqueue()
            await _until_told(registry, EventKind.GENERATION_GONE)
    finally:
        running.cancel()
    assert len(worker.launched) == 3


async def _until_told(registry: Registry, kind: EventKind) -> None:
    # A store tells nobody of what is new.
    while recorded(registry)[kind] == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


class Doomed:
    """Passes every call on, and dies before or after the n-th that changes anything."""

    def __init__(self, target: Any, is_due: Callable[[], bool]) -> None:
        self._target, self._is_due = target, is_due

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if name not in ("create", "launch", "forget"):
            return method

        def call(*args: Any) -> Any:
            if self._is_due():
                raise Killed
            result = method(*args)
            if self._is_due():
                raise Killed
            return result

        return call


async def _life(tmp_path: Path, deadly_step: int, **faults: Any) -> tuple[bool, Registry]:
    """One controller that is killed at a step, then one that is not; whether it was killed."""
    store = open_store(str(tmp_path / str(deadly_step)))
    registry = Registry(store, tmp_path / "cache")
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    worker = world.InstantWorker(registry, **faults)
    steps = itertools.count()

    def is_due() -> bool:
        return next(steps) == deadly_step

    mortal = Registry(Doomed(store, is_due), tmp_path / "cache")
    loop = loop_on(mortal, Doomed(worker, is_due))  # type: ignore[arg-type]
    is_killed = False
    try:
        await settled(loop, worker)
    except Killed:
        is_killed = True
    await settled(loop_on(registry, worker), worker)
    return is_killed, registry


@pytest.mark.parametrize("fault", ["broken", "deadly"])
@pytest.mark.parametrize(("faulty", "sound"), [world.KEYS, world.KEYS[::-1]])
async def test_a_controller_killed_at_any_step_goes_on_where_it_was(
    tmp_path: Path, fault: str, faulty: BuildKey, sound: BuildKey
) -> None:
    faults = {fault: {faulty.kind}}
    is_killed, registry = await _life(tmp_path, -1, **faults)
    assert not is_killed
    wanted = recorded(registry)
    for step in itertools.count():
        is_killed, registry = await _life(tmp_path, step, **faults)
        assert recorded(registry) == wanted, f"killed at step {step}"
        assert [engine.digest for engine in registry.engines()] == [sound.digest()]
        assert len(registry.build_records(faulty.digest())) == 3, f"step {step}"
        assert len(registry.build_records(sound.digest())) == 1, f"step {step}"
        if not is_killed:
            break
    assert step > 20


async def test_a_loss_is_forgiven_once_although_the_controller_is_killed(tmp_path: Path) -> None:
    for step in itertools.count():
        is_killed, registry = await _life(tmp_path, step, num_losses=2)
        for key in world.KEYS:
            (record,) = registry.build_records(key.digest())
            assert record.outcome is BuildOutcome.PROVEN, f"killed at step {step}"
        if not is_killed:
            break
    assert step > 20


async def test_a_task_known_to_nobody_else_is_left_alone(
    registry: Registry, worker: world.InstantWorker
) -> None:
    foreign = world.InstantWorker(registry)
    foreign.tasks["build-of-another-fleet"] = None  # type: ignore[assignment]
    await loop_on(registry, foreign).sync()
    assert "build-of-another-fleet" in foreign.tasks
    assert foreign.statuses()["build-of-another-fleet"].state is TaskState.RUNNING
