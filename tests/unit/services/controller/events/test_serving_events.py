"""Events of what serves, and their seconds since the change that led there."""

from datetime import datetime

import pytest

from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.events import Event, EventKind
from services.contracts.registry.event_log import EventRegistry
from services.controller.api.fleet_state import FleetState
from services.controller.events.event_recorder import EventRecorder
from services.controller.events.serving_events import serving_of
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.events.observed import (
    ORT,
    kinds,
    recorded,
    replica,
    serves,
    view,
)


class TestSeconds:
    """They count from the change that led there."""

    def test_a_change_has_none_and_a_rebuild_counts_for_proofs_alone(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        recorder.observe(view())
        request = RebuildRequest(model="m", version=1, who="ann", created_at=world.AT)
        recorder.observe(view(requests={"m": [request]}))
        recorder.observe(
            view(requests={"m": [request]}, records={ORT.digest(): [world.record(ORT)]})
        )
        recorder.observe_serving(serves())
        appeared, published, asked, failed, fallback = recorded(registry)
        assert [e.seconds_since_change for e in (appeared, published, asked)] == [None] * 3

        def since(event: Event, change: Event) -> float:
            passed = datetime.fromisoformat(event.at) - datetime.fromisoformat(change.at)
            return passed.total_seconds()

        assert failed.seconds_since_change == pytest.approx(since(failed, asked), abs=0.0011)
        wanted = since(fallback, published)
        assert fallback.seconds_since_change == pytest.approx(wanted, abs=0.0011)


class TestServing:
    def test_fallback_then_engine_each_once_with_seconds(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        recorder.observe_serving(serves())
        assert kinds(registry) == [], "of a generation that no source knows yet"
        recorder.observe(view())
        for served in (serves(), serves("e" * 64), [], serves("e" * 64)):
            recorder.observe_serving(served)
            EventRecorder(registry).observe_serving(served)
        assert kinds(registry)[2:] == ["fallback_serving", "engine_serving"]
        assert all(event.seconds_since_change is not None for event in recorded(registry)[2:])

    def test_a_fallback_that_is_refuted_while_it_serves_is_an_event(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        """ONNX Runtime serves before and after: only that torch's is wrong is new."""
        recorder.observe(view())
        interim, refuted, other = replica("a", ""), replica("b", ""), replica("c", "")
        interim.is_fallback_interim = True
        refuted.fallback_refuted = "answers wrong: rel_l2 1.00e-01 found"
        other.fallback_refuted = "answers wrong: rel_l2 1.01e-01 found"
        for found in ([interim], [refuted], [refuted, interim, interim], [other, refuted]):
            for each in (recorder, EventRecorder(registry), recorder):
                each.observe_replicas(fleet.FleetSnapshot(replicas=found))
        before, after = recorded(registry)[2:]
        assert {before.kind, after.kind} == {EventKind.FALLBACK_SERVING}
        assert "answers wrong" not in before.why
        assert after.why == refuted.fallback_refuted
        assert after.seconds_since_change is not None

    def test_after_a_generation_was_gone_it_is_recorded_anew(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        for pools in ((world.pool(),), (), (world.pool(),)):
            recorder.observe(view(pools=pools))
            recorder.observe_serving(serves("e" * 64))
        assert kinds(registry)[2:] == [
            "engine_serving",
            "generation_gone",
            "generation_appeared",
            "engine_serving",
        ]

    def test_most_ready_replicas_decide_and_an_engine_before_the_fallback(self) -> None:
        snapshot = fleet.FleetSnapshot(
            replicas=[
                replica("a", ""),
                replica("b", "e1"),
                replica("c", "e2"),
                replica("d", "e2"),
                replica("x", "e3", fleet.REPLICA_STATE_LOADING),
                replica("y", "", version=2),
            ]
        )
        assert [(s.version, s.key) for s in serving_of(snapshot)] == [(1, "e2"), (2, "")]

    def test_a_controller_that_starts_amid_a_swap_repeats_nothing(
        self, registry: EventRegistry
    ) -> None:
        """The replicas attach one by one, and either may have the new engine first."""
        old, new = "e" * 64, "f" * 64
        model = fleet.ServedModel(name="m", version=1, num_replicas_wanted=2)
        now_s = 0.0

        def observe(recorder: EventRecorder, *replicas: fleet.ReplicaReport) -> None:
            found = fleet.FleetSnapshot(models=[model], replicas=replicas)
            recorder.observe_replicas(found)

        before = EventRecorder(registry, clock=lambda: now_s)
        before.observe(view())
        first = len(recorded(registry))
        observe(before, replica("a", old), replica("b", old))
        observe(before, replica("a", new), replica("b", old))
        after = EventRecorder(registry, clock=lambda: now_s)
        observe(after, replica("b", old))
        observe(after, replica("b", old), replica("a", new))
        observe(after, replica("b", new), replica("a", new))
        assert [event.key for event in recorded(registry)[first:]] == [old, new]
        # One that does not come back is not waited for.
        now_s = 31.0
        observe(after, replica("b", old))
        assert recorded(registry)[-1].key == old

    def test_a_replica_that_ends_while_it_is_ready_is_lost_and_one_that_drains_is_not(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        state = FleetState("store")
        killed, drained = state.attach(replica("a", "e1")), state.attach(replica("b", "e1"))
        state.update(drained, replica("b", "e1", fleet.REPLICA_STATE_DRAINING))
        for gone in (killed, drained):
            state.detach(gone)
        for each in (recorder, EventRecorder(registry), recorder):
            each.observe_replicas(state.snapshot())
        (event,) = recorded(registry)
        assert (event.kind, event.model, event.version, event.generation) == (
            EventKind.REPLICA_LOST,
            "m",
            1,
            world.GENERATION,
        )
        assert event.why.startswith("replica a (process 7) ended, or its connection broke")
        assert event.seconds_since_change is None

    @pytest.mark.parametrize(
        ("back", "words"),
        [
            (replica("a", "e1"), "replica a, which was lost, is ready again"),
            (
                replica("c", "e1"),
                "replica a, which was lost, is replaced, or fewer replicas are wanted",
            ),
        ],
        ids=["the same", "another one"],
    )
    def test_a_lost_replica_that_is_back_has_its_event_once(
        self,
        registry: EventRegistry,
        recorder: EventRecorder,
        back: fleet.ReplicaReport,
        words: str,
    ) -> None:
        state = FleetState("store", epoch=1)
        state.set_model(fleet.ServedModel(name="m", version=1, num_replicas_wanted=2))
        state.attach(replica("b", "e1"))
        recorder.observe_replicas(state.snapshot())
        state.detach(state.attach(replica("a", "e1")))
        loading = replica(back.replica_id, "", fleet.REPLICA_STATE_LOADING)
        for shown in (None, loading, back):
            if shown:
                state.attach(shown)
            for each in (recorder, EventRecorder(registry), recorder):
                each.observe_replicas(state.snapshot())
        lost, restored = recorded(registry)
        assert (lost.kind, restored.kind) == (EventKind.REPLICA_LOST, EventKind.REPLICA_RESTORED)
        assert (restored.model, restored.version, restored.generation, restored.why) == (
            *("m", 1, world.GENERATION),
            words,
        )
        gone = datetime.fromisoformat(restored.at) - datetime.fromisoformat(lost.at)
        assert restored.seconds_since_change == pytest.approx(gone.total_seconds(), abs=0.0011)
        # A second loss of it is another event.
        state.detach(state.attach(back))
        recorder.observe_replicas(state.snapshot())
        assert recorded(registry)[-1].kind is EventKind.REPLICA_LOST

    @pytest.mark.parametrize(("wanted", "num_ended"), [(4, 0), (3, 1), (2, 2), (0, 2), (None, 0)])
    def test_as_many_losses_stay_open_as_replicas_are_missing(
        self,
        registry: EventRegistry,
        recorder: EventRecorder,
        wanted: int | None,
        num_ended: int,
    ) -> None:
        state = FleetState("store", epoch=1)
        state.set_model(fleet.ServedModel(name="m", version=1, num_replicas_wanted=4))
        for name in ("a", "b", "c", "d"):
            attached = state.attach(replica(name, "e1"))
            if name in "ab":
                state.detach(attached)
                recorder.observe_replicas(state.snapshot())
        state.remove_model("m", 1)
        if wanted is not None:
            state.set_model(fleet.ServedModel(name="m", version=1, num_replicas_wanted=wanted))
        for each in (recorder, EventRecorder(registry)):
            each.observe_replicas(state.snapshot())
        ended = [e for e in recorded(registry) if e.kind is EventKind.REPLICA_RESTORED]
        assert len(ended) == num_ended
        assert all(" a, which was lost, is replaced, or fewer" in e.why for e in ended[-1:])
        # Another one is ready in the place of the next.
        state.set_model(fleet.ServedModel(name="m", version=1, num_replicas_wanted=4))
        state.attach(replica("e", "e1"))
        recorder.observe_replicas(state.snapshot())
        assert kinds(registry).count("replica_restored") == max(num_ended, 1)

    def test_a_loss_that_an_earlier_controller_recorded_ends(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        for epoch, each in ((1, recorder), (2, EventRecorder(registry))):
            state = FleetState("store", epoch)
            # It knows no model at first, and then no replica.
            each.observe_replicas(state.snapshot())
            state.set_model(fleet.ServedModel(name="m", version=1, num_replicas_wanted=1))
            each.observe_replicas(state.snapshot())
            if epoch == 1:
                state.detach(state.attach(replica("a", "e1")))
                each.observe_replicas(state.snapshot())
        assert kinds(registry) == ["replica_lost"]
        state.attach(replica("a", "e1"))
        each.observe_replicas(state.snapshot())
        assert kinds(registry) == ["replica_lost", "replica_restored"]

    def test_each_loss_of_a_replica_is_an_event_of_its_own(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        state = FleetState("store", epoch=1)
        for num_losses in (1, 2):
            state.detach(state.attach(replica("a", "e1")))
            for each in (recorder, EventRecorder(registry), recorder):
                each.observe_replicas(state.snapshot())
            assert [event.kind for event in recorded(registry)] == (
                [EventKind.REPLICA_LOST] * num_losses
            )
        # Another controller process counts revisions from 0 again.
        state = FleetState("store", epoch=2)
        state.detach(state.attach(replica("a", "e1")))
        recorder.observe_replicas(state.snapshot())
        assert len(recorded(registry)) == 3
