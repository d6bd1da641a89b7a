"""Which keys are built, proven or quarantined: tables over plans, engines and records."""

from datetime import timedelta
from typing import Any

import pytest

from services.contracts.builds.build_plan import TaskStart
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.controller.build.build_policy import decide, task_start, untouched_key
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import KeyState, is_given_up
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_views import (
    POLICY,
    START,
    engines,
    request,
    tasks_of,
    view,
)

ORT, OPENVINO = world.KEYS


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
            "onnxruntime fp32: failed 3 times, the last time: no; to retry: smelt rebuild m"
        )

    def test_one_that_others_left_too_little_memory_waits_longer_and_is_never_given_up(
        self,
    ) -> None:
        short = world.record(ORT, reason="others leave too little", is_counted=False)
        known = engines(world.engine(OPENVINO))
        records = {ORT.digest(): [short] * 4}
        seen = view(engines=known, records=records)
        assert tasks_of(seen, 2 + 79.9) == []
        (task,) = tasks_of(seen, 2 + 80)
        assert (task.key_digests, task.attempt) == ((ORT.digest(),), 5)
        assert not is_given_up(ORT.digest(), records[ORT.digest()], (), POLICY, None)
        own = [world.record(ORT), short, world.record(ORT), world.record(ORT)]
        decision = decide(
            view(engines=known, records={ORT.digest(): own}), START + timedelta(days=9), POLICY
        )
        assert [event.key for event in decision.quarantined] == [ORT.digest()]
        assert is_given_up(ORT.digest(), own, (), POLICY, None)

    def test_what_its_proof_refused_is_not_built_again_until_it_is_asked_for(self) -> None:
        refused = world.refusal(ORT)
        known = {"engines": engines(world.engine(OPENVINO)), "records": {ORT.digest(): [refused]}}
        decision = decide(view(**known), START + timedelta(days=9), POLICY)
        assert (decision.tasks, decision.next_due_at, decision.quarantined) == ((), None, ())
        (status, _) = view(**known).statuses(world.version(), world.plan(), POLICY)
        assert (status.state, status.reason) == (KeyState.PROOF_FAILED, "it differs")
        asked = request(disregarded={ORT.digest(): 1})
        (task,) = tasks_of(view(**known, requests={"m": (asked,)}))
        assert task.key_digests == (ORT.digest(),)

    def test_an_engine_that_was_compared_with_nothing_is_tried_again_as_other_failures(
        self,
    ) -> None:
        failed = world.refusal(ORT, checks=(), reason="the engine failed: CUDA out of memory")
        known = engines(world.engine(OPENVINO))
        seen = view(engines=known, records={ORT.digest(): [failed]})
        (task,) = tasks_of(seen, 12)
        assert (task.key_digests, task.attempt) == ((ORT.digest(),), 2)
        seen = view(engines=known, records={ORT.digest(): [failed] * 3})
        (quarantined,) = decide(seen, START + timedelta(days=9), POLICY).quarantined
        assert "failed 3 times, the last time: the engine failed: CUDA" in quarantined.why

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
