"""Loads and unloads as events: who asked, and what followed."""

from datetime import datetime
from pathlib import Path

import pytest

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.object_store import open_store
from services.controller.build.build_reader import ViewReader
from services.controller.build.key_status import RetryPolicy
from services.controller.events.event_recorder import EventRecorder
from services.controller.events.serving_events import serving_of
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world

FACTS = DeviceFacts(generation=world.GENERATION, name="x", memory_gib=1)
READY = fleet.FleetSnapshot(
    replicas=[
        fleet.ReplicaReport(
            replica_id="r",
            model_name="m",
            model_version=1,
            state=fleet.REPLICA_STATE_READY,
            device_facts_json=FACTS.canonical_json(),
            fallback_reason="no_engine",
        )
    ]
)
GONE = fleet.FleetSnapshot()


def test_who_asked_and_what_followed_is_recorded_once(tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )

    def look(snapshot: fleet.FleetSnapshot) -> None:
        """One pass of a controller and one of its successor."""
        for _ in range(2):
            view = ViewReader(registry, RetryPolicy(), "").read([world.pool()], [])
            recorder = EventRecorder(registry)
            recorder.observe(view)
            recorder.observe_serving(serving_of(snapshot))

    look(GONE)
    look(READY)
    registry.set_served("m", is_served=False, who="ann@host")
    look(READY)  # it drains
    look(GONE)
    registry.set_served("m", is_served=True, who="search-team")
    registry.set_served("m", is_served=True, who="nobody: it was so before")
    look(GONE)
    look(READY)
    registry.set_served("m", is_served=False)
    look(GONE)
    events = [event for _, event in registry.last_events(100)][2:]
    assert [(event.kind.value, event.actor) for event in events] == [
        ("fallback_serving", "controller"),
        ("model_unloaded", "ann@host"),
        ("serving_ended", "controller"),
        ("model_loaded", "search-team"),
        ("fallback_serving", "controller"),
        ("model_unloaded", "somebody"),
        ("serving_ended", "controller"),
    ]
    assert {(event.model, event.version) for event in events} == {("m", 1)}
    assert [event.seconds_since_change is None for event in events[1:5]] == [
        True,
        False,
        True,
        False,
    ]
    # A build did not follow from it.
    registry.record_build(world.record(world.KEYS[0]))
    registry.write_plan(world.plan())
    look(GONE)
    [failed] = [event for _, event in registry.last_events(1)]
    published = registry.last_events(100)[1][1]
    assert (failed.kind.value, published.kind.value) == ("build_failed", "model_published")
    assert failed.seconds_since_change == _seconds(published.at, failed.at)
    assert events[1].why == "no version is to be served; undo it with: smelt models load m"


def _seconds(start: str, end: str) -> object:
    passed = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    return pytest.approx(passed.total_seconds(), abs=0.0011)


def test_a_model_that_lost_its_replicas_was_not_unloaded(tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    recorder = EventRecorder(registry)
    recorder.observe(ViewReader(registry, RetryPolicy(), "").read([world.pool()], []))
    for snapshot in (READY, GONE, READY):
        recorder.observe_serving(serving_of(snapshot))
    kinds = [event.kind.value for _, event in registry.last_events(100)]
    assert kinds[2:] == ["fallback_serving"]


def test_a_fallback_that_is_wrong_has_its_event_when_it_is_added_and_where_it_serves(
    tmp_path: Path,
) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    registry.add_model_version(
        name="m",
        master=world.MASTER,
        recipe=Recipe(),
        source="s",
        source_fingerprint="0",
        fallback_verdict=FallbackVerdict(refuted="output 'y' is far off", num_samples=3),
    )
    snapshot = fleet.FleetSnapshot()
    snapshot.CopyFrom(READY)
    snapshot.replicas[0].fallback_refuted = "ONNX Runtime serves: output 'y' is far off"
    recorder = EventRecorder(registry)
    recorder.observe(ViewReader(registry, RetryPolicy(), "").read([world.pool()], []))
    recorder.observe_serving(serving_of(snapshot))
    why = {event.kind.value: event.why for _, event in registry.last_events(100)}
    assert why["model_published"].startswith("from s; the fallback's graph is refuted, so ONNX")
    assert (
        why["fallback_serving"]
        == "no proven engine of this model is published; ONNX Runtime serves: output 'y' is far off"
    )
