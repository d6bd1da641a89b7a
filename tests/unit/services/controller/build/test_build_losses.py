"""The build loop when a task, a node, a source or the controller itself is lost at any step."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import NotReadyError
from services.contracts.events import EventKind
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.recipe import Recipe
from services.contracts.process.host_boot import HostBoot
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.text.moments import timestamp
from services.controller.interfaces import TaskState, TaskStatus
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_loops import (
    AT_ONCE,
    Nodes,
    loop_on,
    recorded,
    settled,
)


async def test_a_task_that_dies_is_counted_to_the_key_it_was_at(
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
        *[BuildOutcome.FAILED] * num_charged,
        BuildOutcome.PROVEN,
    ]


@pytest.mark.parametrize("num_keys", [0, 1, 2])
async def test_what_takes_its_only_host_down_is_given_up(
    registry: Registry, worker: world.InstantWorker, num_keys: int
) -> None:
    """Each boot has a controller whose launcher knows no task; without a plan planning does it."""
    if num_keys:
        registry.write_plan(world.plan(world.KEYS[:num_keys]))
    for num_boots in range(20):
        boot = HostBoot(boot_id=f"boot {num_boots}", began_at=datetime.fromisoformat(timestamp()))
        # What is started again within a boot is the same loss.
        for _ in range(2):
            worker.tasks.clear()
            loop = loop_on(registry, worker, boot=boot)
            await loop.sync()
            await loop.sync()
        if not worker.tasks:
            break
    # Of two that an attempt loses, the second is counted, and an attempt is made three times.
    num_given_up = max(num_keys, 1)
    assert num_boots == 6 * num_given_up
    assert recorded(registry)[EventKind.QUARANTINED] == num_given_up
    reasons = [r.reason for key in world.KEYS for r in registry.build_records(key.digest())]
    assert len(reasons) == 3 * num_keys
    assert all("ended in the middle: its host restarted" in reason for reason in reasons)


async def test_planning_that_loses_a_second_node_is_an_attempt(
    registry: Registry, worker: world.InstantWorker
) -> None:
    """Its Pod is evicted each time before there is a plan."""
    loop = loop_on(registry, worker)
    await loop.sync()
    for run in range(9):
        for name in worker.tasks:
            worker.ended[name] = TaskStatus(
                state=TaskState.ENDED, detail="evicted", is_failed=True, is_lost=True, run=str(run)
            )
        await loop.sync()
    assert list(Counter(task.name for task in worker.launched).values()) == [2, 2, 2]
    kinds = recorded(registry)
    assert (kinds[EventKind.BUILD_FAILED], kinds[EventKind.QUARANTINED]) == (3, 1)


@pytest.mark.parametrize(
    ("state", "has_deadlines", "num_ended", "num_charged"),
    [
        (TaskState.RUNNING, False, 1, 1),
        (TaskState.WAITING, False, 1, 0),
        (TaskState.RUNNING, True, 0, 0),
    ],
)
async def test_a_task_that_never_ends_is_ended_where_its_platform_does_not(
    registry: Registry,
    worker: world.InstantWorker,
    state: TaskState,
    has_deadlines: bool,
    num_ended: int,
    num_charged: int,
) -> None:
    """Four hours for its first key, and one more for the second."""
    now_s = 0.0
    worker.has_deadlines = has_deadlines
    registry.write_plan(world.plan())
    loop = loop_on(registry, worker, clock=lambda: now_s)
    await loop.sync()
    (name,) = worker.tasks
    worker.ended[name] = TaskStatus(state=state)
    await loop.sync()
    now_s = 5 * 3600.0 - 1
    await loop.sync()
    assert len(worker.launched) == 1
    now_s = 5 * 3600.0
    await loop.sync()
    assert len(worker.launched) == 1 + num_ended
    reasons = [record.reason for record in registry.build_records(world.KEYS[0].digest())]
    words = f"task {name} ended in the middle: not done within 5 hours"
    assert reasons == [words] * num_charged


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


async def test_a_removed_model_is_built_no_further(
    registry: Registry, worker: world.InstantWorker
) -> None:
    loop = loop_on(registry, worker)
    await loop.sync()
    assert worker.tasks
    registry.remove_model("m")
    await loop.sync()
    assert worker.tasks == {}
    assert registry.build_records(world.KEYS[0].digest()) == []


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
@pytest.mark.parametrize(
    ("faulty", "sound"),
    [world.KEYS, pytest.param(*world.KEYS[::-1], marks=pytest.mark.slow)],
)
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


async def test_an_ended_task_that_the_store_has_no_start_of_is_forgotten_after_a_while(
    registry: Registry, worker: world.InstantWorker
) -> None:
    now_s = 0.0
    pace = replace(AT_ONCE, nodes_gone_after_s=30.0)
    worker.tasks["build-stray"] = None  # type: ignore[assignment]
    worker.ended["build-stray"] = TaskStatus(state=TaskState.ENDED)
    loop = loop_on(registry, worker, pace=pace, clock=lambda: now_s)
    await loop.sync()
    # Whose it is may account for it.
    assert "build-stray" in worker.statuses()
    now_s = 30.0
    await loop.sync()
    assert "build-stray" not in worker.statuses()
