"""Removed versions and changed weights as events: recorded once, and what followed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path

import pytest

from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.events import Event, EventKind
from services.contracts.external.external_model import ExternalModel
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.build.build_reader import ViewReader
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import RetryPolicy
from services.controller.events import event_recorder
from services.controller.events.event_recorder import EventRecorder
from services.controller.events.event_state import EventState
from tests.unit.services.controller import build_world as world

NOTHING_LEFT = "no version is left to serve"
ENGINE = "e" * 64


class Seen:
    """A store, and controllers that look at it."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(open_store(str(folder / "store")), folder / "cache")
        self._recorded = 0

    def add(self, source: str) -> None:
        master = world.MASTER.model_copy(update={"digest": source * 64})
        self.registry.add_model_version(
            name="m", master=master, recipe=Recipe(), source=source, source_fingerprint=source
        )

    def look(self, *serving: int) -> list[Event]:
        """What is new after one pass of a controller and one of its successor."""
        for _ in range(2):
            recorder = EventRecorder(self.registry)
            recorder.observe(ViewReader(self.registry, RetryPolicy(), "").read([world.pool()], []))
            recorder.observe_serving(_with_engines(serving))
        events = [event for _, event in self.registry.last_events(100)]
        new = events[self._recorded :]
        self._recorded = len(events)
        return new


@pytest.fixture(autouse=True)
def _minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which each event is a minute after the one before."""
    minutes = (datetime(2026, 1, 2, tzinfo=UTC) + n * timedelta(minutes=1) for n in count())
    monkeypatch.setattr(event_recorder, "utc_now", lambda: next(minutes))


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    """Version 1 served, and version 2 does."""
    made = Seen(tmp_path)
    made.add("1")
    made.look(1)
    made.add("2")
    assert _short(made.look(1)) == [("model_published", 2)]
    assert _short(made.look(1, 2)) == [("engine_serving", 2)]
    return made


def _with_engines(versions: Sequence[int]) -> list[Event]:
    kind = EventKind.ENGINE_SERVING
    return [
        Event(kind=kind, model="m", version=each, generation=world.GENERATION, key=ENGINE, why="w")
        for each in versions
    ]


def _short(events: Sequence[Event]) -> list[tuple[str, int]]:
    return [(event.kind.value, event.version) for event in events]


def test_a_removal_says_who_asked_and_what_serves_instead(seen: Seen) -> None:
    seen.registry.remove_model("m", 2, who="ann@host")
    # The removed one drains meanwhile, which is nothing new.
    removed, back = seen.look(1, 2)
    assert _short([removed, back]) == [("model_removed", 2), ("engine_serving", 1)]
    assert (removed.actor, removed.why) == ("ann@host", "version 1 is to be served")
    assert removed.seconds_since_change is None
    # Not from when version 2 was published.
    assert back.seconds_since_change == _seconds(removed, back)
    assert seen.look(1) == []


def test_a_removed_version_is_not_recorded_to_end_later(seen: Seen) -> None:
    seen.registry.remove_model("m", 2)
    assert _short(seen.look(1)) == [("model_removed", 2), ("engine_serving", 1)]
    seen.registry.set_served("m", is_served=False)
    assert _short(seen.look()) == [("model_unloaded", 1), ("serving_ended", 1)]


def test_nor_is_one_that_a_newer_one_took_over_from(seen: Seen) -> None:
    seen.registry.set_served("m", is_served=False)
    assert _short(seen.look()) == [("model_unloaded", 2), ("serving_ended", 2)]


def test_a_model_without_versions_left_has_its_event_of_and_may_come_back(seen: Seen) -> None:
    seen.registry.remove_model("m")
    events = seen.look()
    assert _short(events) == [("model_removed", 1), ("model_removed", 2)]
    assert {(event.actor, event.why) for event in events} == {("somebody", NOTHING_LEFT)}
    seen.add("2")
    assert _short(seen.look(3)) == [("model_published", 3), ("engine_serving", 3)]


def test_an_old_version_that_is_removed_explains_nothing(seen: Seen) -> None:
    published = seen.registry.last_events(2)[0][1]
    assert _short([published]) == [("model_published", 2)]
    seen.registry.set_served("m", is_served=False)
    seen.look()
    seen.registry.set_served("m", is_served=True)
    [loaded] = seen.look()
    seen.registry.remove_model("m", 1)
    removed, back = seen.look(2)
    assert _short([removed, back]) == [("model_removed", 1), ("engine_serving", 2)]
    assert removed.why == "version 2 is to be served"
    assert back.seconds_since_change == _seconds(loaded, back)


def test_weights_are_recorded_once_with_who_asked(seen: Seen) -> None:
    seen.registry.set_version_weights("m", {1: 95, 2: 5}, who="ann@host")
    changed, back = seen.look(1, 2)
    assert _short([changed, back]) == [("weights_changed", 2), ("engine_serving", 1)]
    assert (changed.actor, changed.why) == (
        "ann@host",
        "requests that name no version are shared: v1=95 v2=5",
    )
    assert back.seconds_since_change == _seconds(changed, back)
    seen.add("3")
    seen.add("4")
    assert _short(seen.look(1, 2)) == [("model_published", 4)]
    seen.registry.remove_model("m", 4)
    assert [event.why for event in seen.look(1, 2)] == [changed.why]
    seen.registry.set_served("m", is_served=False)
    # Both served: both end.
    assert _short(seen.look())[1:] == [("serving_ended", 1), ("serving_ended", 2)]


def test_cleared_weights_say_what_that_means(seen: Seen) -> None:
    seen.registry.set_version_weights("m", {1: 95, 2: 0})
    assert seen.look(1, 2)[0].why == "requests that name no version are shared: v1=95"
    seen.registry.set_version_weights("m", {})
    [cleared] = seen.look(1, 2)
    assert cleared.why.startswith("cleared: the newest version that is ready gets all requests")
    seen.registry.set_served("m", is_served=False)
    assert _short(seen.look()) == [("model_unloaded", 2), ("serving_ended", 2)]
    seen.registry.remove_model("m", 2)
    assert seen.look()[0].why == "version 1 is the newest left; the model is unloaded"


def test_an_engine_that_a_rebuild_had_proven_counts_from_the_rebuild(tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    recorder = EventRecorder(registry)
    request = RebuildRequest(model="m", version=1, who="ann", created_at=world.AT)
    engine = world.engine(world.KEYS[0], world.proof(created_at="2999-01-01T00:00:00.000+00:00"))
    view = FleetView(pools=(world.pool(),), versions=(world.version(),))
    recorder.observe(view)
    engines = {engine.digest: engine}
    recorder.observe(replace(view, requests={"m": [request]}, engines=engines))
    [served] = _with_engines([1])
    for digest in (ENGINE, engine.digest):
        recorder.observe_serving([served.model_copy(update={"key": digest})])
    events = [event for _, event in registry.last_events(100)]
    by_kind = {event.kind.value: event for event in events}
    other, proven = events[-2:]
    assert other.seconds_since_change == _seconds(by_kind["model_published"], other)
    assert proven.seconds_since_change == _seconds(by_kind["rebuild_requested"], proven)


def _seconds(change: Event, event: Event) -> float:
    return (datetime.fromisoformat(event.at) - datetime.fromisoformat(change.at)).total_seconds()


def test_what_people_ask_of_external_models_is_recorded_too(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.look()
    for port in (1, 2):
        draft = ExternalModel(name="m", version=0, url=f"grpc://h:{port}", remote_name="r")
        seen.registry.add_external_version(draft)
        (published,) = seen.look()
        assert (published.kind, published.version) == (EventKind.MODEL_PUBLISHED, port)
        assert published.why == f"'r' of a KServe v2 server at grpc://h:{port}"
    seen.registry.set_version_weights("m", {1: 90.0, 2: 10.0}, who="ann")
    (weighted,) = seen.look()
    assert (weighted.kind, weighted.actor) == (EventKind.WEIGHTS_CHANGED, "ann")
    assert weighted.why.endswith("v1=90 v2=10")
    seen.registry.remove_external("m", 2, who="bob")
    (removed,) = seen.look()
    assert (removed.kind, removed.version, removed.actor) == (EventKind.MODEL_REMOVED, 2, "bob")
    assert removed.why == "requests that name no version are shared: v1=90"
    seen.registry.remove_external("m", who="bob")
    assert [(each.version, each.why) for each in seen.look()] == [(1, NOTHING_LEFT)]


def test_of_a_model_that_is_gone_nothing_is_kept_of_its_keys() -> None:
    """Only that it was published and each of its versions removed."""
    state = EventState()
    sizes = []
    for number in range(1, 4):
        of = {"model": f"m{number}", "at": world.AT}
        for version in (1, 2):
            state.apply(Event(kind=EventKind.MODEL_PUBLISHED, version=version, mark="p", **of))
            for kind in (EventKind.BUILD_FINISHED, EventKind.PROOF_PASSED, EventKind.QUARANTINED):
                key = f"{number}{version}"
                state.apply(Event(kind=kind, version=version, key=key, mark=f"{kind} {key}", **of))
        num_before = len(state.checkpoint().last)
        for version in (1, 2):
            assert len(state.checkpoint().last) == num_before + version - 1
            state.apply(Event(kind=EventKind.MODEL_REMOVED, version=version, mark="r", **of))
        sizes.append(len(state.checkpoint().last))
    assert [after - before for before, after in pairwise([0, *sizes])] == [3, 3, 3]
