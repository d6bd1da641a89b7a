"""When a task plans: for new nodes, ahead of them, and for nodes that two sources report."""

from datetime import timedelta
from typing import Any

import pytest

from services.contracts.builds.build_plan import BuildPlan, TaskEnd
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import (
    ProofOutcome,
    PublishedEngine,
)
from services.controller.build.build_policy import decide, planning_names
from services.controller.build.build_view import FleetView, distinct_pools
from services.controller.interfaces import NodePool
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_views import (
    ANYWHERE,
    OTHER_DRIVER,
    POLICY,
    START,
    engines,
    request,
    tasks_of,
    view,
)
from tests.unit.services.controller.build.test_build_policy import ORT


class TestFirstTask:
    def test_without_a_plan_one_task_does_all_that_is_missing(self) -> None:
        (task,) = tasks_of(view(plans={}))
        assert (task.model, task.version, task.node_class) == ("m", 1, world.NODE_CLASS)
        assert (task.key_digests, task.is_anywhere, task.attempt) == ((), False, 1)

    @pytest.mark.parametrize("changes", [{"pools": ()}, {"versions": ()}])
    def test_without_nodes_or_models_there_is_none(self, changes: dict[str, Any]) -> None:
        assert tasks_of(view(**changes)) == []

    def test_names_are_the_same_for_the_same_view_and_short(self) -> None:
        long = world.version(name="0Model.With_a-very.long_name" + "x" * 60)
        seen = view(versions=(long,), plans={})
        (task,) = tasks_of(seen)
        assert tasks_of(seen) == [task]
        assert len(task.name) <= 52
        assert task.name[0].isalpha()
        assert set(task.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")

    def test_a_toolchain_is_part_of_what_is_planned_for(self) -> None:
        updated = world.NODE_CLASS.model_copy(update={"toolchain": "0" * 16})
        (task,) = tasks_of(view(pools=(world.pool(node_class=updated),)))
        assert (task.key_digests, task.node_class) == ((), updated)

    def test_planning_backs_off_and_is_given_up(self) -> None:
        seen = view(plans={})
        names = planning_names(seen, world.version(), world.pool(), POLICY)
        ends: dict[str, TaskEnd] = {}
        for attempt, delay_s in enumerate((0, 10, 20), start=1):
            waiting = view(plans={}, ends=dict(ends))
            if delay_s:
                assert tasks_of(waiting, delay_s - 1) == []
                due_at = decide(waiting, START, POLICY).next_due_at
                assert due_at == START + timedelta(seconds=delay_s)
            (task,) = tasks_of(waiting, delay_s)
            assert (task.name, task.attempt) == (names[attempt - 1], attempt)
            ends[task.name] = TaskEnd(name=task.name, detail="recipe: x", created_at=world.AT)
        given_up = decide(view(plans={}, ends=ends), START + timedelta(days=9), POLICY)
        assert given_up.tasks == ()
        assert given_up.next_due_at is None
        (quarantined,) = given_up.quarantined
        assert "recipe: x" in quarantined.why
        asked = view(plans={}, ends=ends, requests={"m": (request(),)})
        (again,) = tasks_of(asked)
        assert again.attempt == 1
        assert again.name not in names
        assert seen.ends == {}


class TestAheadOfTime:
    KEY = world.key(EngineKind.TENSORRT, generation="cuda-sm120")

    def plan(self) -> BuildPlan:
        return world.plan((self.KEY,), is_anywhere=True, node_class=ANYWHERE, facts=None)

    def seen(self, pool: NodePool, *known: PublishedEngine, **changes: Any) -> FleetView:
        plans = {("m", 1): (self.plan(),)}
        return view(pools=(pool,), plans=plans, engines=engines(*known), **changes)

    def test_it_is_built_without_a_node_and_not_proven(self) -> None:
        empty = world.pool(0, ANYWHERE, "file")
        (task,) = tasks_of(self.seen(empty))
        assert (task.is_anywhere, task.key_digests) == (True, (self.KEY.digest(),))
        built = world.engine(self.KEY, world.proof(ProofOutcome.NOT_RUN, device=None))
        assert tasks_of(self.seen(empty, built)) == []

    def test_a_pool_that_may_grow_takes_the_plan_of_its_generation(self) -> None:
        grown = NodeClass(generation="cuda-sm120", device="GB", driver="580")
        assert tasks_of(self.seen(world.pool(0, grown, "kubernetes")))[0].key_digests

    def test_another_compiler_plans_and_may_do_what_the_old_one_could_not(self) -> None:
        empty = world.pool(0, ANYWHERE, "file")
        (task,) = tasks_of(self.seen(empty, compiler="image:2"))
        assert (task.key_digests, task.compiler) == ((), "image:2")
        names = planning_names(view(plans={}), world.version(), empty, POLICY)
        ends = {n: TaskEnd(name=n, detail="x", created_at=world.AT) for n in names}
        assert tasks_of(self.seen(empty, compiler="image:2", ends=ends)) == [task]

    def test_once_a_node_is_there_it_plans_for_itself(self) -> None:
        arrived = NodeClass(generation="cuda-sm120", device="GB", driver="580", toolchain="1")
        built = world.engine(self.KEY, world.proof(ProofOutcome.NOT_RUN, device=None))
        (task,) = tasks_of(self.seen(world.pool(1, arrived), built))
        assert (task.is_anywhere, task.key_digests) == (False, ())

    def test_generations_without_a_proven_engine_are_named_where_nodes_are(self) -> None:
        seen = view(pools=(world.pool(), world.pool(0, ANYWHERE, "file")))
        assert decide(seen, START, POLICY).without_engine == {("m", world.GENERATION)}
        proven = view(engines=engines(world.engine(ORT)))
        assert decide(proven, START, POLICY).without_engine == frozenset()
        assert decide(proven, START, POLICY).with_engine == {("m", world.GENERATION)}


KUBERNETES = world.NODE_CLASS.model_copy(update={"toolchain": ""})

FILE = NodeClass(generation=world.GENERATION)


@pytest.mark.parametrize(
    ("pools", "kept"),
    [
        ([world.pool(0, FILE, "file"), world.pool(2)], [world.pool(2)]),
        ([world.pool(3, KUBERNETES, "kubernetes"), world.pool(2)], [world.pool(2)]),
        ([world.pool(1), world.pool(2, source="kubernetes")], [world.pool(2, source="kubernetes")]),
        (
            [world.pool(1, KUBERNETES, "kubernetes"), world.pool(0)],
            [world.pool(1, KUBERNETES, "kubernetes"), world.pool(0)],
        ),
        ([world.pool(0, FILE, "file"), world.pool(0, KUBERNETES)], [world.pool(0, KUBERNETES)]),
        (
            [world.pool(0, FILE), world.pool(1, OTHER_DRIVER)],
            [world.pool(0, FILE), world.pool(1, OTHER_DRIVER)],
        ),
    ],
)
def test_nodes_that_two_sources_see_count_once(pools: list[NodePool], kept: list[NodePool]) -> None:
    assert distinct_pools(pools) == kept
