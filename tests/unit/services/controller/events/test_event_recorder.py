"""Events: recorded once, also over restarts; with the seconds since the change."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from services.contracts.builds.build_plan import RebuildRequest, TaskEnd, TaskStart
from services.contracts.events import Event, EventCheckpoint, EventKind, EventPosition
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import BuildOutcome, ProofOutcome, SideTiming, Timing
from services.contracts.model.recipe import Recipe
from services.contracts.registry.events import EventRegistry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_policy import decide
from services.controller.build.build_view import FleetView
from services.controller.events.event_recorder import EventRecorder
from services.controller.events.event_state import EventState
from services.controller.events.serving_events import serving_of
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world

ORT, OPENVINO = world.KEYS
NOW = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> ObstoreArtifactStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def registry(store: ObstoreArtifactStore) -> EventRegistry:
    return EventRegistry(store)


@pytest.fixture
def recorder(registry: EventRegistry) -> EventRecorder:
    return EventRecorder(registry)


def view(*engines: Any, **changes: Any) -> FleetView:
    fields: dict[str, Any] = {
        "pools": (world.pool(),),
        "versions": (world.version(),),
        "plans": {("m", 1): (world.plan(),)},
        "engines": {engine.digest: engine for engine in engines},
    }
    return FleetView(**fields | changes)


def recorded(registry: EventRegistry) -> list[Event]:
    return [event for _, event in registry.last_events(100)]


def kinds(registry: EventRegistry) -> list[str]:
    return [event.kind.value for event in recorded(registry)]


def serves(digest: str = "", version: int = 1) -> list[Event]:
    kind = EventKind.ENGINE_SERVING if digest else EventKind.FALLBACK_SERVING
    place = {"model": "m", "version": version, "generation": world.GENERATION}
    return [Event(kind=kind, key=digest, why="w", **place)]


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
        EventKind.BUILD_FAILED, "m", world.GENERATION,
    )  # fmt: skip
    assert event.why == "no plan was made (attempt 1 of 3): recipe: unknown kind"


class TestHardware:
    def test_one_whose_nodes_take_nothing_new_says_which_and_why(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        recorder.observe(view())
        away = replace(world.pool(0), num_known=1, names=("node-a (cordoned)",))
        recorder.observe(view(pools=(away,)))
        assert recorded(registry)[-1].kind is EventKind.GENERATION_GONE
        assert recorded(registry)[-1].why == "its nodes take nothing new: node-a (cordoned)"

    def test_a_generation_comes_changes_and_goes(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        newer = world.NODE_CLASS.model_copy(update={"toolchain": "f" * 16})
        pools: Sequence[Any] = [
            (world.pool(),),
            (world.pool(), world.pool(node_class=newer)),
            (world.pool(node_class=newer),),
            (world.pool(0, newer),),
            (world.pool(),),
        ]
        for known in pools:
            recorder.observe(view(pools=known, versions=()))
            EventRecorder(registry).observe(view(pools=known, versions=()))
        assert kinds(registry) == [
            "generation_appeared", "toolchain_changed", "toolchain_changed", "generation_gone",
            "generation_appeared",
        ]  # fmt: skip
        first, second, third, *_ = recorded(registry)
        assert "Some-Xeon" in first.why
        assert "toolchain ffff" in second.why
        assert third.why == "nodes of another class are gone"


class TestModels:
    def test_a_new_master_is_a_model_a_new_recipe_is_not(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        other = world.MASTER.model_copy(update={"digest": "d" * 64})
        versions = [
            world.version(),
            world.version(version=2, recipe=Recipe(num_replicas=2)),
            world.version(version=3, master=other),
        ]
        for version in versions:
            recorder.observe(view(pools=(), versions=(version,)))
            EventRecorder(registry).observe(view(pools=(), versions=(version,)))
        assert kinds(registry) == ["model_published", "recipe_changed", "model_published"]

    def test_who_asked_for_a_rebuild_has_its_event(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        request = RebuildRequest(
            model="m", version=1, who="ann@host", why="new driver", created_at=world.AT
        )
        for _ in range(2):
            recorder.observe(view(requests={"m": [request]}, pools=()))
        event = recorded(registry)[-1]
        assert (event.kind, event.actor, event.why, event.mark) == (
            EventKind.REBUILD_REQUESTED, "ann@host", "new driver", "1",
        )  # fmt: skip
        assert len(recorded(registry)) == 2


class TestBuilds:
    def test_a_build_has_its_event_from_its_start_to_its_proof(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        start = TaskStart(
            name="build-m-1", model="m", version=1, node_class=world.NODE_CLASS,
            is_anywhere=False, attempt=2, reason="1 to build", created_at=world.AT,
        )  # fmt: skip
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
            bucket="b", sizes={}, p50_s=1.0, p95_s=1.0, throughput=1.0, eager_p50_s=3.0,
            fallback=half,
        )  # fmt: skip
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
            "quarantined", "rebuild_requested", "rebuild_requested", "quarantined",
        ]  # fmt: skip
        assert recorded(registry)[-1].why.endswith("let out by: smelt rebuild m")


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

    def test_after_a_generation_was_gone_it_is_recorded_anew(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        for pools in ((world.pool(),), (), (world.pool(),)):
            recorder.observe(view(pools=pools))
            recorder.observe_serving(serves("e" * 64))
        assert kinds(registry)[2:] == [
            "engine_serving", "generation_gone", "generation_appeared", "engine_serving",
        ]  # fmt: skip

    def test_most_ready_replicas_decide_and_an_engine_before_the_fallback(self) -> None:
        snapshot = fleet.FleetSnapshot(
            replicas=[
                replica("a", ""), replica("b", "e1"), replica("c", "e2"), replica("d", "e2"),
                replica("x", "e3", fleet.REPLICA_STATE_LOADING), replica("y", "", version=2),
            ]
        )  # fmt: skip
        assert [(s.version, s.key) for s in serving_of(snapshot)] == [(1, "e2"), (2, "")]

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
            EventKind.REPLICA_LOST, "m", 1, world.GENERATION,
        )  # fmt: skip
        assert event.why.startswith("replica a (process 7) ended, or its connection broke")
        assert event.seconds_since_change is None

    def test_each_loss_of_a_replica_is_an_event_of_its_own(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        state = FleetState("store", life_id=1)
        for num_losses in (1, 2):
            state.detach(state.attach(replica("a", "e1")))
            for each in (recorder, EventRecorder(registry), recorder):
                each.observe_replicas(state.snapshot())
            assert [event.kind for event in recorded(registry)] == (
                [EventKind.REPLICA_LOST] * num_losses
            )
        # Another controller process counts revisions from 0 again.
        state = FleetState("store", life_id=2)
        state.detach(state.attach(replica("a", "e1")))
        recorder.observe_replicas(state.snapshot())
        assert len(recorded(registry)) == 3


def replica(
    name: str, digest: str, state: Any = fleet.REPLICA_STATE_READY, version: int = 1
) -> fleet.ReplicaReport:
    facts = DeviceFacts(generation=world.GENERATION, name="x", memory_gib=1)
    return fleet.ReplicaReport(
        replica_id=name, model_name="m", model_version=version, state=state,
        device_facts_json=facts.canonical_json(), engine_digest=digest, process_id=7,
    )  # fmt: skip


def checkpoint_of_all(registry: EventRegistry) -> EventCheckpoint:
    """What the events amount to for one who reads them from the first."""
    state = EventState()
    for position, event in registry.events_after(EventPosition()):
        state.apply(event)
        state.position = position
    return state.checkpoint()


class TestRestart:
    def test_a_start_reads_the_newest_checkpoint_and_what_follows(
        self, registry: EventRegistry
    ) -> None:
        first = EventRecorder(registry, events_per_checkpoint=3)
        first.observe(view(world.engine(ORT), world.engine(OPENVINO)))
        checkpoint = registry.last_checkpoint()
        assert checkpoint.position.number in (3, 6)
        assert checkpoint.last["model m"].version == 1
        before = kinds(registry)
        second = EventRecorder(registry, events_per_checkpoint=1)
        second.observe(view(world.engine(ORT), world.engine(OPENVINO)))
        assert kinds(registry) == before
        second.observe(view(world.engine(ORT), world.engine(OPENVINO), pools=()))
        assert kinds(registry) == [*before, "generation_gone"]
        assert registry.last_checkpoint() == checkpoint_of_all(registry)

    def test_a_checkpoint_of_another_smelt_is_passed_over(
        self, registry: EventRegistry, store: ObstoreArtifactStore, recorder: EventRecorder
    ) -> None:
        recorder.observe(view())
        before = kinds(registry)
        store.create("event-checkpoints/000001.json", b'{"of": "another"}')
        restarted = EventRecorder(registry, events_per_checkpoint=1)
        restarted.observe(view())
        assert kinds(registry) == before
        restarted.observe(view(pools=()))
        assert kinds(registry) == [*before, "generation_gone"]
        assert registry.last_checkpoint() == checkpoint_of_all(registry)
