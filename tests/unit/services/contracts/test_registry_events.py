"""The event trail in a store: order, days, followers, two writers."""

from pathlib import Path

import pytest

from services.contracts.events import Event, EventKind, EventPosition, TrailFold
from services.contracts.object_store import ObstoreArtifactStore, open_store
from services.contracts.registry_events import EventRegistry


@pytest.fixture
def store(tmp_path: Path) -> ObstoreArtifactStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def trail(store: ObstoreArtifactStore) -> EventRegistry:
    return EventRegistry(store)


def event(number: int, day: int = 1, model: str = "") -> Event:
    return Event(
        at=f"2026-01-{day:02d}T00:00:00.{number:03d}+00:00",
        kind=EventKind.BUILD_STARTED,
        model=model,
        mark=str(number),
    )


def marks(found: list[tuple[EventPosition, Event]]) -> list[str]:
    return [event.mark for _, event in found]


def test_an_empty_trail_has_nothing(trail: EventRegistry) -> None:
    assert trail.last_events(10) == []
    assert list(trail.events_after(EventPosition())) == []
    assert trail.event_end() == EventPosition()
    assert trail.last_fold() == TrailFold()


def test_events_keep_their_order_over_days_and_processes(
    store: ObstoreArtifactStore, trail: EventRegistry
) -> None:
    for number in range(3):
        trail.append_event(event(number))
    EventRegistry(store).append_event(event(3))
    trail.append_event(event(4))
    position = trail.append_event(event(5, day=2))
    assert position == EventPosition(day="2026-01-02", number=1)
    assert marks(list(trail.events_after(EventPosition()))) == ["0", "1", "2", "3", "4", "5"]
    assert marks(trail.last_events(3)) == ["3", "4", "5"]
    assert trail.event_end() == position


def test_a_follower_gets_what_is_new_once(trail: EventRegistry) -> None:
    position = trail.append_event(event(0))
    assert list(trail.events_after(position)) == []
    trail.append_event(event(1))
    trail.append_event(event(2, day=2))
    reached = list(trail.events_after(position))
    assert marks(reached) == ["1", "2"]
    assert list(trail.events_after(reached[-1][0])) == []


def test_of_one_model_hardware_is_a_part(trail: EventRegistry) -> None:
    for number, model in enumerate(("m", "other", "", "m")):
        trail.append_event(event(number, model=model))
    assert marks(trail.last_events(10, "m")) == ["0", "2", "3"]
    assert marks(trail.last_events(2, "m")) == ["2", "3"]


def test_the_same_event_said_twice_is_kept_once(
    store: ObstoreArtifactStore, trail: EventRegistry
) -> None:
    trail.append_event(event(0))
    fresh = EventRegistry(store)
    assert fresh.event_end().number == 1
    # A client that lost the answer to its create asks again: the number is taken by itself.
    late = EventRegistry(store)
    late._last_numbers["2026-01-01"] = 0
    assert late.append_event(event(0)).number == 1
    assert late.append_event(event(1)).number == 2


def test_the_newest_fold_counts(trail: EventRegistry) -> None:
    trail.keep_fold(TrailFold(versions={"m": 1}))
    trail.keep_fold(TrailFold(versions={"m": 2}))
    assert trail.last_fold().versions == {"m": 2}
