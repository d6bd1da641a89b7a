"""The event recorder beside other writers, under wrong clocks, and with events it cannot read."""

from datetime import UTC, datetime, timedelta

import pytest

from services.contracts.events import EventDay
from services.contracts.registry.event_log import EventRegistry
from services.contracts.store.object_store import ObstoreArtifactStore
from services.controller.build.build_view import FleetView
from services.controller.events import event_recorder
from services.controller.events.event_recorder import EventRecorder
from tests.unit.services.controller import build_world as world

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def view(num_nodes: int = 1, *names: str) -> FleetView:
    return FleetView(
        pools=(world.pool(num_nodes),), versions=[world.version(name=name) for name in names]
    )


def kinds(registry: EventRegistry) -> list[str]:
    return [event.kind.value for _, event in registry.last_events(100)]


def set_clock(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    monkeypatch.setattr(event_recorder, "utc_now", lambda: now)


def test_a_clock_set_back_over_midnight_repeats_nothing(
    registry: EventRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = EventRecorder(registry)
    for days in (0, -1, -1, 0):
        set_clock(monkeypatch, NOON + timedelta(days=days))
        recorder.observe(view())
        recorder.observe(view(0))
    assert kinds(registry) == ["generation_appeared", "generation_gone"] * 4
    assert registry.event_end().day == "2026-03-02"
    recorder.observe(view(0))
    assert len(kinds(registry)) == 8


def test_two_writers_with_clocks_a_day_apart_record_each_thing_once(
    registry: EventRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = EventRecorder(registry), EventRecorder(registry)
    for names in ((), ("a",), ("a", "b")):
        set_clock(monkeypatch, NOON + timedelta(days=1))
        ahead.observe(view(1, *names))
        set_clock(monkeypatch, NOON)
        behind.observe(view(1, *names))
    assert kinds(registry) == ["generation_appeared", "model_published", "model_published"]


def test_a_writer_that_comes_second_takes_in_the_other_ones_event_first(
    registry: EventRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = EventRecorder(registry), EventRecorder(registry)
    first.observe(view())
    append = registry.append_event
    is_raced = False

    def raced(event: object, after: object) -> object:
        nonlocal is_raced
        if not is_raced:
            is_raced = True
            first.observe(view(1, "m"))
        return append(event, after)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "append_event", raced)
    second.observe(view(1, "m"))
    assert kinds(registry) == ["generation_appeared", "model_published"]


@pytest.mark.parametrize(
    "unreadable",
    [
        b'{"of": "a newer version"}',
        b"half an eve",
        # Of a known kind, and of an unknown meaning.
        b'{"at": "", "kind": "rebuild_requested", "mark": "second"}',
    ],
)
def test_an_event_that_cannot_be_understood_stops_nothing(
    registry: EventRegistry,
    store: ObstoreArtifactStore,
    unreadable: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = EventRecorder(registry)
    recorder.observe(view())
    position = registry.event_end()
    store.create(f"events/{position.day}/000002.json", unreadable)
    for _ in range(2):
        recorder.observe(view(1, "m"))
    assert registry.event_end().number == 3
    EventRecorder(registry).observe(view(1, "m"))
    assert kinds(registry)[-1] == "model_published"
    assert kinds(registry).count("model_published") == 1
    assert "is left out" in caplog.text


def test_a_day_that_was_begun_and_has_no_event_is_no_hindrance(
    registry: EventRegistry, store: ObstoreArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = EventDay(day="2026-03-02")
    store.create("event-days/2026-03-02.json", day.canonical_json())
    set_clock(monkeypatch, NOON)
    EventRecorder(registry).observe(view())
    assert kinds(registry) == ["generation_appeared"]
