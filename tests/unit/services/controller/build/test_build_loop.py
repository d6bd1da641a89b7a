"""The build loop over a real store, with a worker that needs no compiler."""

import asyncio

import pytest

from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.errors import NotReadyError, StoreError
from services.contracts.events import EventKind
from services.contracts.hardware import node_class
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp, utc_now
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.key_status import RetryPolicy
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.interfaces import BuildTask
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_loops import (
    AT_ONCE,
    HangingNodes,
    Nodes,
    loop_on,
    recorded,
    settled,
)


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


async def test_a_ray_that_hangs_ends_no_loop(
    registry: Registry, worker: world.InstantWorker
) -> None:
    nodes = HangingNodes(world.pool())
    loop = loop_on(registry, worker, nodes, threads=FleetThreads(ask_timeout_s=0.05))
    with pytest.raises(NotReadyError, match="Ray did not answer within"):
        await loop.sync()
    nodes.let_go.set()
    await settled(loop, worker)
    assert len(registry.engines()) == 2


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


async def test_a_build_that_gives_way_is_recorded_and_begun_again(
    registry: Registry, worker: world.InstantWorker
) -> None:
    loop = loop_on(registry, worker)
    await loop.sync()
    (first,) = worker.launched
    registry.write_plan(world.plan(compiler=first.compiler))
    worker.build(world.KEYS[0])
    other = world.MASTER.model_copy(update={"digest": "c" * 64})
    registry.add_model_version(
        name="n", master=other, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    await loop.sync()
    await loop.sync()
    assert [task.model for task in worker.tasks.values()] == ["n"]
    (event,) = [e for _, e in registry.last_events(99) if e.kind is EventKind.BUILD_WAITING]
    assert event.model == "m"
    assert event.why.startswith("preempted: another model has no engine yet")


@pytest.mark.parametrize(
    "created_at", [timestamp(utc_now()), "2099-01-01T00:00:00.000+00:00"], ids=["now", "later"]
)
async def test_what_could_not_be_measured_is_timed_again_until_it_is(
    registry: Registry, worker: world.InstantWorker, created_at: str
) -> None:
    """Whatever the clock of the host that timed it shows."""
    found = iter([(0.6, 1.9), (1.3, 1.4)])

    def timed() -> None:
        registry.add_joint_run(world.joint_run(*next(found), created_at=created_at))

    worker.timings, worker.on_timed = world.paired(0.6, 1.9), timed
    loop = loop_on(registry, worker)
    await settled(loop, worker)
    assert [len(task.key_digests) for task in worker.launched] == [0, 0, 0]
    assert [task.attempt for task in worker.launched] == [1, 1, 2]
    assert "timed again" in worker.launched[-1].reason
    assert next(found, None) is None
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 3, "it is measured now"


async def test_a_compiler_whose_clock_is_slow_does_not_hurry_a_timing(
    registry: Registry, worker: world.InstantWorker
) -> None:
    worker.timings = world.paired(0.6, 1.9)
    pace = BuildPace(nodes_gone_after_s=0.0)
    loop = BuildLoop(registry, Nodes(world.pool()), worker, FleetState("", 0), pace=pace)
    await settled(loop, worker)
    assert len(worker.launched) == 1, "its proofs are of months ago, by what they say"


async def test_what_cannot_be_measured_at_all_is_left_alone_after_some_times(
    registry: Registry, worker: world.InstantWorker
) -> None:
    """Nor does a task that leaves no run lead to a busy loop, or a restart begin anew."""
    worker.timings = world.paired(0.6, 1.9)
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 1 + AT_ONCE.retry.max_timings
    await settled(loop_on(registry, worker), worker)
    assert len(worker.launched) == 1 + AT_ONCE.retry.max_timings


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


class RefusingWorker(world.InstantWorker):
    """A BuildLauncher that takes no task of model `m`, and counts them."""

    num_refused = 0

    def launch(self, task: BuildTask) -> None:
        if task.model != "m":
            return super().launch(task)
        self.num_refused += 1
        raise StoreError("exceeded quota: jobs")


@pytest.mark.usefixtures("worker")
async def test_a_refusal_is_forgotten_once_nothing_wants_the_task(registry: Registry) -> None:
    worker, nodes = RefusingWorker(registry), Nodes(world.pool())
    loop = loop_on(registry, worker, nodes, clock=lambda: 0.0)
    for _ in range(2):
        await loop.sync()
    assert worker.num_refused == 1
    for nodes.known in ([], [world.pool()]):
        await loop.sync()
    assert worker.num_refused == 2


@pytest.mark.usefixtures("worker")
async def test_a_refused_task_leaves_its_place_to_other_models_and_ends_none_of_theirs(
    registry: Registry,
) -> None:
    now_s = 0.0
    worker = RefusingWorker(registry)
    loop = loop_on(registry, worker, clock=lambda: now_s)
    await loop.sync()
    other = world.MASTER.model_copy(update={"digest": "c" * 64})
    registry.add_model_version(
        name="n", master=other, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    await loop.sync()
    (task,) = worker.tasks.values()
    assert (task.model, worker.num_refused) == ("n", 1)
    keys = tuple(key.model_copy(update={"master_digest": other.digest}) for key in world.KEYS)
    registry.write_plan(world.plan(keys, model="n", compiler=task.compiler))
    worker.build(keys[0])
    now_s = 2.0
    for _ in range(2):
        await loop.sync()
    assert list(worker.tasks.values()) == [task]
    worker.tasks.clear()
    await loop.sync()
    assert worker.num_refused == 2, "its turn, after its pause"


async def _until_told(registry: Registry, kind: EventKind) -> None:
    # A store tells nobody of what is new.
    while recorded(registry)[kind] == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
