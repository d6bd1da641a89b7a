"""What is to be built when: tables over hardware, plans, engines and records."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from services.contracts.builds.build_plan import BuildPlan, RebuildRequest, TaskEnd, TaskStart
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import (
    BuildOutcome,
    ModelVersion,
    ProofOutcome,
    PublishedEngine,
)
from services.controller.build.build_policy import decide, planning_names, task_start, untouched_key
from services.controller.build.build_view import FleetView, distinct_pools
from services.controller.build.key_status import KeyState
from services.controller.interfaces import NodePool
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_views import POLICY, START, engines, tasks_of, view

ORT, OPENVINO = world.KEYS
OTHER_DRIVER = NodeClass(generation="cuda-sm90", device="H200", memory_gib=139, driver="580.1")
ANYWHERE = NodeClass(generation="cuda-sm120")


def request(**changes: Any) -> RebuildRequest:
    fields: dict[str, Any] = {"model": "m", "version": 1, "who": "ann", "created_at": world.AT}
    return RebuildRequest(**fields | changes)


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


class TestKeys:
    @pytest.mark.parametrize(
        ("known", "wanted"),
        [
            ({}, [ORT, OPENVINO]),
            (engines(world.engine(ORT)), [OPENVINO]),
            (engines(world.engine(ORT, world.proof(ProofOutcome.NOT_RUN))), [ORT, OPENVINO]),
            (engines(world.engine(ORT, world.proof(ProofOutcome.FAILED))), [OPENVINO]),
            (engines(world.engine(ORT), world.engine(OPENVINO)), []),
        ],
    )
    def test_what_is_missing_or_unproven_is_wanted(
        self, known: dict[str, PublishedEngine], wanted: list[Any]
    ) -> None:
        tasks = tasks_of(view(engines=known))
        assert [d for task in tasks for d in task.key_digests] == [k.digest() for k in wanted]

    def test_what_is_proven_on_a_higher_class_is_proven_again(self) -> None:
        amx = world.DEVICE.model_copy(update={"generation": "cpu-x86_64-amx"})
        known = engines(world.engine(ORT, world.proof(device=amx)), world.engine(OPENVINO))
        (task,) = tasks_of(view(engines=known))
        assert task.key_digests == (ORT.digest(),)
        assert task.reason == "1 to prove"

    def test_a_failed_key_waits_twice_as_long_each_time(self) -> None:
        known = engines(world.engine(OPENVINO))
        failed_at = START
        for num_failures, delay_s in ((1, 10), (2, 20)):
            records = {ORT.digest(): [world.record(ORT)] * num_failures}
            seen = view(engines=known, records=records)
            # A record lasts two seconds; the pause begins at its end.
            assert tasks_of(seen, 2 + delay_s - 0.1) == []
            (task,) = tasks_of(seen, 2 + delay_s)
            assert (task.key_digests, task.attempt) == ((ORT.digest(),), num_failures + 1)
            decision = decide(seen, failed_at, POLICY)
            assert decision.next_due_at == failed_at + timedelta(seconds=2 + delay_s)

    def test_after_three_failures_it_is_given_up_with_the_last_words(self) -> None:
        records = {ORT.digest(): [world.record(ORT)] * 2 + [world.record(ORT, reason="no")]}
        known = engines(world.engine(OPENVINO))
        decision = decide(view(engines=known, records=records), START + timedelta(days=9), POLICY)
        assert (decision.tasks, decision.next_due_at) == ((), None)
        (quarantined,) = decision.quarantined
        assert quarantined.key == ORT.digest()
        assert quarantined.why == (
            "onnxruntime fp32: failed 3 times, the last time: no; let out by: smelt rebuild m"
        )

    def test_failures_before_a_success_do_not_count(self) -> None:
        built = world.record(ORT, BuildOutcome.BUILT)
        records = {ORT.digest(): [world.record(ORT), world.record(ORT), built, world.record(ORT)]}
        unproven = world.engine(ORT, world.proof(ProofOutcome.NOT_RUN))
        seen = view(engines=engines(unproven, world.engine(OPENVINO)), records=records)
        (status, _) = seen.statuses(world.version(), world.plan(), POLICY)
        assert (status.state, status.num_failures) == (KeyState.FAILED, 1)

    def test_keys_that_fail_do_not_hold_up_the_others(self) -> None:
        records = {ORT.digest(): [world.record(ORT)]}
        (task,) = tasks_of(view(records=records))
        assert task.key_digests == (OPENVINO.digest(),)


class TestRebuild:
    def test_it_lets_out_what_was_given_up(self) -> None:
        records = {ORT.digest(): [world.record(ORT)] * 3}
        known = engines(world.engine(OPENVINO))
        asked = request(disregarded={ORT.digest(): 3})
        seen = view(engines=known, records=records, requests={"m": (asked,)})
        (task,) = tasks_of(seen)
        assert (task.key_digests, task.attempt) == ((ORT.digest(),), 1)
        (before,) = tasks_of(view(engines=known))
        assert task.name != before.name

    def test_what_failed_since_counts(self) -> None:
        records = {ORT.digest(): [world.record(ORT)] * 4}
        asked = request(disregarded={ORT.digest(): 3})
        seen = view(records=records, requests={"m": (asked,)})
        (status, _) = seen.statuses(world.version(), world.plan(), POLICY)
        assert (status.state, status.num_failures) == (KeyState.FAILED, 1)

    @pytest.mark.parametrize("outcome", [ProofOutcome.PASSED, ProofOutcome.FAILED])
    def test_a_published_engine_is_proven_once_more(self, outcome: ProofOutcome) -> None:
        old = world.engine(ORT, world.proof(outcome))
        known = engines(old, world.engine(OPENVINO))
        asked = {"m": (request(reprove={ORT.digest(): world.AT}),)}
        (task,) = tasks_of(view(engines=known, requests=asked))
        assert task.key_digests == (ORT.digest(),)
        newer = world.engine(ORT, world.proof(created_at="2026-01-01T00:00:09.000+00:00"))
        assert (
            tasks_of(view(engines=engines(newer, known[OPENVINO.digest()]), requests=asked)) == []
        )

    def test_of_another_generation_it_changes_nothing(self) -> None:
        records = {ORT.digest(): [world.record(ORT)] * 3}
        asked = request(generation="cuda-sm90", disregarded={ORT.digest(): 3})
        seen = view(
            engines=engines(world.engine(OPENVINO)), records=records, requests={"m": (asked,)}
        )
        assert tasks_of(seen) == []


class TestWhoComesFirst:
    def test_one_task_at_a_time_on_a_class_and_the_urgent_one_first(self) -> None:
        second = world.version(
            name="n", master=world.MASTER.model_copy(update={"digest": "c" * 64})
        )
        other = world.key(EngineKind.OPENVINO, master_digest="c" * 64)
        seen = view(
            versions=(world.version(), second),
            plans={
                ("m", 1): (world.plan(),),
                ("n", 1): (world.plan((other,), model="n"),),
            },
            engines=engines(world.engine(ORT)),
        )
        (task,) = tasks_of(seen)
        assert task.model == "n", "it has nothing proven yet"
        start = task_start(task, seen, world.AT)
        assert tasks_of(view(**vars(seen) | {"running": [start]})) == []

    def test_what_nothing_serves_is_first_then_the_oldest(self) -> None:
        ages = {"new": "2026-03-01", "old": "2026-01-01", "served": "2025-01-01"}
        versions = [world.version(name=name, created_at=f"{at}T00:00:00Z")
                    for name, at in ages.items()]  # fmt: skip
        served = frozenset({("served", 1, world.GENERATION)})
        decision = decide(view(versions=versions, plans={}, served=served), START, POLICY)
        turns = [task.model for task in (*decision.tasks, *decision.queued)]
        assert turns == ["old", "new", "served"]

    def test_each_gets_its_first_engine_before_any_gets_its_second(self) -> None:
        """A new one without a plan, an older one that has one, and one that has an engine."""
        masters = {name: digest * 64 for name, digest in (("a", "1"), ("b", "2"), ("c", "3"))}
        keys = {
            name: tuple(world.key(kind, master_digest=master)
                        for kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))
            for name, master in masters.items()
        }  # fmt: skip
        versions = [
            world.version(name=name, master=world.MASTER.model_copy(update={"digest": master}))
            for name, master in masters.items()
        ]
        plans = {(name, 1): (world.plan(keys[name], model=name),) for name in "bc"}
        seen = view(versions=versions, plans=plans, engines=engines(world.engine(keys["c"][0])))
        turns = decide(seen, START, POLICY)
        asked = [
            (task.model, task.is_first, task.key_digests) for task in (*turns.tasks, *turns.queued)
        ]
        assert asked == [
            ("a", True, ()),
            ("b", False, (keys["b"][0].digest(),)),
            ("c", False, (keys["c"][1].digest(),)),
        ]

    def test_one_that_lacks_engines_alone_gets_all_by_one_task(self) -> None:
        (task,) = tasks_of(view())
        assert task.key_digests == (ORT.digest(), OPENVINO.digest())
        (task,) = tasks_of(view(plans={}))
        assert not task.is_first

    def test_nothing_is_launched_for_nodes_as_they_were_before_their_source_was_lost(self) -> None:
        stale = replace(world.pool(), is_stale=True)
        decision = decide(view(pools=(stale,), plans={}), START, POLICY)
        assert (decision.tasks, decision.queued) == ((), ())

    def test_classes_of_one_generation_do_not_build_the_same_twice(self) -> None:
        twin = world.NODE_CLASS.model_copy(update={"device": "Other-Xeon"})
        pools = (world.pool(), world.pool(node_class=twin))
        assert len(tasks_of(view(pools=pools, plans={}))) == 1

    def test_classes_of_other_generations_build_side_by_side(self) -> None:
        pools = (world.pool(), world.pool(node_class=OTHER_DRIVER))
        assert len(tasks_of(view(pools=pools, plans={}))) == 2

    def test_where_no_node_is_one_task_at_a_time_builds_ahead(self) -> None:
        pools = (
            world.pool(0, ANYWHERE, "file"),
            world.pool(0, NodeClass(generation="cuda-sm89"), "file"),
        )
        (task,) = tasks_of(view(pools=pools, plans={}))
        assert (task.is_anywhere, task.node_class) == (True, ANYWHERE)


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
        names = planning_names(self.seen(empty), world.version(), empty, POLICY)
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
        ([world.pool(0, FILE), world.pool(1, OTHER_DRIVER)],
         [world.pool(0, FILE), world.pool(1, OTHER_DRIVER)]),
    ],
)  # fmt: skip
def test_nodes_that_two_sources_see_count_once(pools: list[NodePool], kept: list[NodePool]) -> None:
    assert distinct_pools(pools) == kept


class TestEndedTask:
    def start(self, seen: FleetView) -> TaskStart:
        (task,) = tasks_of(seen)
        return task_start(task, seen, world.AT)

    def test_the_first_key_of_which_nothing_is_new_was_being_built(self) -> None:
        start = self.start(view())
        assert untouched_key(start, {}, {}) == ORT.digest()
        one = {ORT.digest(): [world.record(ORT)]}
        assert untouched_key(start, one, {}) == OPENVINO.digest()
        assert untouched_key(start, one, engines(world.engine(OPENVINO))) is None

    def test_what_was_there_before_is_not_new(self) -> None:
        unproven = world.engine(ORT, world.proof(ProofOutcome.NOT_RUN))
        seen = view(
            engines=engines(unproven, world.engine(OPENVINO)),
            records={ORT.digest(): [world.record(ORT, BuildOutcome.BUILT)]},
        )
        start = self.start(seen)
        assert untouched_key(start, seen.records, seen.engines) == ORT.digest()
        proven = engines(world.engine(ORT, world.proof(created_at="2026-01-02T00:00:00+00:00")))
        assert untouched_key(start, seen.records, proven) is None


def test_a_model_has_a_plan_for_each_version() -> None:
    newer: ModelVersion = world.version(version=2)
    (task,) = tasks_of(view(versions=(newer,)))
    assert (task.version, task.key_digests) == (2, ())
