"""Events of builds and proofs: once each, also over restarts."""

from datetime import UTC, datetime, timedelta

from services.contracts.builds.build_plan import RebuildRequest, TaskEnd, TaskStart
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.events import EventKind
from services.contracts.model.manifest import ProofOutcome, SideTiming, Timing
from services.contracts.registry.event_log import EventRegistry
from services.controller.build.build_policy import decide
from services.controller.events.event_recorder import EventRecorder
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.events.observed import NOW, OPENVINO, ORT, kinds, recorded, view


def test_a_task_that_made_no_plan_is_recorded_once_with_its_last_words(
    registry: EventRegistry, recorder: EventRecorder
) -> None:
    seen = view(plans={})
    (task,) = decide(seen, NOW).tasks
    end = TaskEnd(name=task.name, detail="recipe: unknown kind", created_at=world.AT)
    decision = decide(view(plans={}, ends={task.name: end}), NOW)
    for each in (recorder, EventRecorder(registry), recorder):
        each.observe_once((*decision.unplanned, *decision.quarantined))
    (event,) = recorded(registry)
    assert (event.kind, event.model, event.generation) == (
        EventKind.BUILD_FAILED,
        "m",
        world.GENERATION,
    )
    assert event.why == "no plan was made (attempt 1 of 3): recipe: unknown kind"


class TestBuilds:
    def test_a_build_has_its_event_from_its_start_to_its_proof(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        start = TaskStart(
            name="build-m-1",
            model="m",
            version=1,
            node_class=world.NODE_CLASS,
            is_anywhere=False,
            attempt=2,
            reason="1 to build",
            created_at=world.AT,
        )
        unproven = world.engine(ORT, world.proof(ProofOutcome.NOT_RUN, device=None))
        later = datetime.now(UTC) + timedelta(hours=1)
        proven = world.engine(ORT, world.proof(created_at=later.isoformat()))
        for seen in (view(running=[start]), view(unproven), view(proven)):
            recorder.observe(seen)
            recorder.observe(seen)
        assert kinds(registry)[2:] == ["build_started", "build_finished", "proof_passed"]
        _, _, started, finished, passed = recorded(registry)
        assert started.why == "1 to build (attempt 2)"
        assert finished.why == "onnxruntime fp32 in 1.0 s"
        assert passed.seconds_since_change is not None
        assert passed.seconds_since_change >= 0

    def test_an_engine_that_is_slower_than_the_fallback_says_so(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        half = SideTiming(p50_s=0.5, p95_s=0.5, throughput=2.0, peak_memory_bytes=1)
        timing = Timing(
            bucket="b",
            sizes={},
            p50_s=1.0,
            p95_s=1.0,
            throughput=1.0,
            eager_p50_s=3.0,
            fallback=half,
        )
        recorder.observe(view(world.engine(ORT, world.proof(timings=(timing,)))))
        passed = recorded(registry)[-1]
        assert passed.kind is EventKind.PROOF_PASSED
        assert passed.why.startswith(
            "onnxruntime fp32: 3.00 x eager; slower than the fallback: 0.50 x its speed"
        )

    def test_what_is_older_than_the_change_did_not_follow_it(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        recorder.observe(view(world.engine(ORT)))
        assert kinds(registry)[-1] == "proof_passed"
        assert recorded(registry)[-1].seconds_since_change is None

    def test_each_failed_attempt_is_recorded_once(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        records = [world.record(ORT), world.record(ORT, BuildOutcome.PROVEN)]
        records += [world.record(ORT, BuildOutcome.PROOF_FAILED, reason="it differs")]
        for number in range(len(records) + 1):
            recorder.observe(view(records={ORT.digest(): records[:number]}))
            EventRecorder(registry).observe(view(records={ORT.digest(): records[:number]}))
        assert kinds(registry)[2:] == ["build_failed", "proof_failed"]
        assert recorded(registry)[-1].why == "onnxruntime fp32 in stage 'build': it differs"

    def test_two_models_with_one_master_share_their_builds(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        twins = (world.version(), world.version(name="n"))
        plans = {("m", 1): (world.plan(),), ("n", 1): (world.plan(model="n"),)}
        records = {OPENVINO.digest(): [world.record(OPENVINO)]}
        recorder.observe(view(world.engine(ORT), versions=twins, plans=plans, records=records))
        assert kinds(registry)[3:] == ["build_finished", "proof_passed", "build_failed"]

    def test_quarantine_is_recorded_again_once_it_was_left(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        records = {ORT.digest(): [world.record(ORT, reason="it broke")] * 3}
        (given_up,) = decide(view(world.engine(OPENVINO), records=records), NOW).quarantined
        elsewhere = RebuildRequest(
            model="m", version=1, generation="cuda-sm90", who="a", created_at=world.AT
        )
        here = elsewhere.model_copy(update={"generation": world.GENERATION})
        for requests in ([], [elsewhere], [elsewhere, here]):
            for _ in range(2):
                recorder.observe(view(requests={"m": requests}))
                recorder.observe_once([given_up])
        assert kinds(registry)[2:] == [
            "quarantined",
            "rebuild_requested",
            "rebuild_requested",
            "quarantined",
        ]
        assert recorded(registry)[-1].why.endswith("to retry: smelt rebuild m")
