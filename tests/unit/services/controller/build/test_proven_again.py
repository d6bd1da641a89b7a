"""When published engines are proven or timed again: other code, figures that leave doubt."""

from datetime import timedelta
from typing import Any

import pytest

from services.contracts.builds.build_plan import TaskStart
from services.contracts.model.manifest import ProofOutcome
from services.contracts.model.recipe import Recipe
from services.controller.build.build_policy import decide, task_start
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import is_given_up
from services.controller.build.retiming import timing_names
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_views import POLICY, START, engines, tasks_of, view

ORT, OPENVINO = world.KEYS


class TestOtherCodeProvedIt:
    LATER = "2026-01-02T00:00:00.000+00:00"

    @pytest.mark.parametrize("outcome", [ProofOutcome.PASSED, ProofOutcome.FAILED])
    def test_it_is_proven_again_once(self, outcome: ProofOutcome) -> None:
        plans = {("m", 1): [world.plan(proof_code="new", created_at=self.LATER)]}
        old, kept = (
            world.engine(ORT, world.proof(outcome, code="old")),
            world.engine(OPENVINO, world.proof(code="new")),
        )
        (task,) = tasks_of(view(plans=plans, engines=engines(old, kept)))
        assert task.key_digests == (ORT.digest(),)
        again = world.engine(ORT, world.proof(code="new", created_at="2026-01-02T00:00:09.000"))
        assert tasks_of(view(plans=plans, engines=engines(again, kept))) == []

    @pytest.mark.parametrize("num_failures", [1, 3])
    @pytest.mark.parametrize("checks", [{}, {"checks": ()}])
    def test_what_its_proof_refused_is_built_again_once(
        self, num_failures: int, checks: dict[str, Any]
    ) -> None:
        plans = {("m", 1): [world.plan(proof_code="new", created_at=self.LATER)]}
        known = engines(world.engine(OPENVINO, world.proof(code="new")))
        old = [world.refusal(ORT, code="old", **checks)] * num_failures
        (task,) = tasks_of(view(plans=plans, engines=known, records={ORT.digest(): old}))
        assert (task.key_digests, task.attempt) == ((ORT.digest(),), 1)
        # Else its next record would not be read.
        assert not is_given_up(ORT.digest(), old, (), POLICY, plans["m", 1][0])
        again = world.refusal(ORT, code="new", created_at="2026-01-02T00:00:09.000")
        seen = view(plans=plans, engines=known, records={ORT.digest(): [*old, again]})
        assert tasks_of(seen, 9e9) == []

    def test_nodes_of_two_releases_do_not_replace_each_others_proofs(self) -> None:
        plans = {("m", 1): [world.plan(proof_code="old")]}
        newer = [
            world.engine(each, world.proof(code="new", created_at=self.LATER))
            for each in (ORT, OPENVINO)
        ]
        assert tasks_of(view(plans=plans, engines=engines(*newer))) == []


class TestTimedAgain:
    """Engines that could not be told from the fallback; all times from what the store holds."""

    MINUTE_S = 60.0

    def seen(self, low: float, high: float, **changes: Any) -> FleetView:
        proven = [
            world.engine(key, world.proof(timings=world.paired(low, high))) for key in world.KEYS
        ]
        return view(engines=engines(*proven), **changes)

    @pytest.mark.parametrize(("low", "high"), [(1.2, 1.3), (0.97, 1.03), (0.5, 0.6)])
    def test_what_was_measured_is_not(self, low: float, high: float) -> None:
        decision = decide(self.seen(low, high), START + timedelta(days=9), POLICY)
        assert (decision.tasks, decision.next_due_at) == ((), None)

    def test_it_backs_off_and_comes_to_an_end(self) -> None:
        starts: dict[str, TaskStart] = {}
        at_s = 0.0
        for attempt in range(1, POLICY.max_timings + 1):
            pause = min(2**attempt, 24 * 60)
            seen = self.seen(0.6, 1.9, timings=dict(starts))
            due_s = at_s + pause * self.MINUTE_S
            assert tasks_of(seen, due_s - 1) == []
            assert decide(seen, START + timedelta(seconds=due_s - 1), POLICY).next_due_at == (
                START + timedelta(seconds=due_s)
            )
            (task,) = tasks_of(seen, due_s)
            assert (task.attempt, task.key_digests, task.is_anywhere) == (attempt, (), False)
            at_s = due_s
            at = (START + timedelta(seconds=at_s)).isoformat()
            starts[task.name] = task_start(task, seen, at)
        assert (len(starts), at_s) == (15, 9_246 * self.MINUTE_S)
        over = decide(self.seen(0.6, 1.9, timings=starts), START + timedelta(days=99), POLICY)
        assert (over.tasks, over.next_due_at) == ((), None)

    def test_another_proof_begins_anew(self) -> None:
        seen = self.seen(0.6, 1.9)
        names = timing_names(seen, world.version(), world.pool(), POLICY)
        proof = world.proof(timings=world.paired(0.6, 1.9), created_at="2026-01-02T00:00:00+00:00")
        again = view(engines=engines(*(world.engine(key, proof) for key in world.KEYS)))
        assert not set(names) & set(timing_names(again, world.version(), world.pool(), POLICY))

    def test_what_is_missing_is_built_first(self) -> None:
        only = world.engine(ORT, world.proof(timings=world.paired(0.6, 1.9)))
        (task,) = tasks_of(view(engines=engines(only)), 9e9)
        assert task.key_digests == (OPENVINO.digest(),)

    def test_no_node_no_model_that_asks_no_timing(self) -> None:
        careless = world.version(recipe=Recipe(must_beat_fallback=False))
        assert tasks_of(self.seen(0.6, 1.9, versions=(careless,)), 9e9) == []
        ahead = {("m", 1): (world.plan(facts=None),)}
        empty = self.seen(0.6, 1.9, pools=(world.pool(0),), plans=ahead)
        assert tasks_of(empty, 9e9) == []
