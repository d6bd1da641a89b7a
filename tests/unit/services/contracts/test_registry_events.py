"""Events in a store: order, days, followers, two writers."""

import threading
from pathlib import Path

import pytest
from obstore.store import LocalStore

from services.contracts.events import Event, EventCheckpoint, EventKind, EventPosition
from services.contracts.registry import event_log
from services.contracts.registry.event_log import EventRegistry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store


class CountingStore(ObstoreArtifactStore):
    """Notes what is read and listed; reads wait for each other, where there is a barrier."""

    reads_at_once: threading.Barrier | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(folder, mkdir=True), "counting")
        self.read_keys: list[str] = []
        self.listed: list[str] = []

    def read(self, key: str) -> bytes:
        """Read and note."""
        self.read_keys.append(key)
        if self.reads_at_once:
            self.reads_at_once.wait(timeout=30)
        return super().read(key)

    def list(self, prefix: str) -> list[str]:
        """List and note."""
        self.listed.append(prefix)
        return super().list(prefix)


@pytest.fixture
def store(tmp_path: Path) -> ObstoreArtifactStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def registry(store: ObstoreArtifactStore) -> EventRegistry:
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


def append(registry: EventRegistry, *events: Event) -> EventPosition:
    """Append events after all that there are; returns where the last one stands."""
    position = registry.event_end()
    for each in events:
        reached = registry.append_event(each, position)
        assert reached is not None
        position = reached
    return position


def test_an_empty_store_has_nothing(registry: EventRegistry) -> None:
    assert registry.last_events(10) == []
    assert list(registry.events_after(EventPosition())) == []
    assert registry.event_end() == EventPosition()
    assert registry.last_checkpoint() == EventCheckpoint()


def test_events_keep_their_order_over_days_and_processes(
    store: ObstoreArtifactStore, registry: EventRegistry
) -> None:
    append(registry, *map(event, range(3)))
    append(EventRegistry(store), event(3))
    position = append(registry, event(4), event(5, day=2))
    assert position == EventPosition(day="2026-01-02", number=1)
    assert marks(list(registry.events_after(EventPosition()))) == ["0", "1", "2", "3", "4", "5"]
    assert marks(registry.last_events(3)) == ["3", "4", "5"]
    assert registry.event_end() == position


def test_a_follower_gets_what_is_new_once(registry: EventRegistry) -> None:
    position = append(registry, event(0))
    assert list(registry.events_after(position)) == []
    append(registry, event(1), event(2, day=2))
    reached = list(registry.events_after(position))
    assert marks(reached) == ["1", "2"]
    assert list(registry.events_after(reached[-1][0])) == []


def test_of_one_model_hardware_is_a_part(registry: EventRegistry) -> None:
    append(registry, *(event(n, model=model) for n, model in enumerate(("m", "other", "", "m"))))
    for limit, wanted in ((10, ["0", "2", "3"]), (2, ["2", "3"])):
        found = registry.search_events(limit, lambda each: each.is_about("m"))
        assert (marks(found.events), found.is_cut) == (wanted, False)


def test_a_search_ends_after_so_many_events_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `smelt why` of a quiet model reads all that ever happened to the others."""
    monkeypatch.setattr(event_log, "MOST_SEARCHED", 20)
    store = CountingStore(tmp_path)
    registry = EventRegistry(store)
    others = [event(n, day=2 + n // 4, model="other") for n in range(80)]
    append(registry, event(99, model="m"), *others)
    store.listed.clear()
    found = registry.search_events(1, lambda each: each.model == "m")
    assert (found.events, found.is_cut) == ([], True)
    assert len(store.read_keys) == 20
    assert len(store.listed) <= 1 + 1 + 2 + 4
    # Who asks for more has more searched.
    found = registry.search_events(81, lambda each: each.model == "m")
    assert (marks(found.events), found.is_cut) == (["99"], False)
    assert not registry.search_events(5, lambda each: each.model == "other").is_cut


def test_of_all_events_no_more_are_read_than_are_wanted(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    registry = EventRegistry(store)
    append(registry, *(event(n, day=1 + n // 5) for n in range(20)))
    store.listed.clear()
    assert marks(registry.last_events(3)) == ["17", "18", "19"]
    assert len(store.read_keys) == 3
    assert store.listed == ["event-days/", "events/2026-01-04/"]


def test_events_are_read_at_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    registry = EventRegistry(store)
    append(registry, *(event(n, day=1 + n // 8) for n in range(32)))
    store.reads_at_once = threading.Barrier(16)
    assert marks(registry.last_events(32)) == [str(n) for n in range(32)]


def test_the_same_event_said_twice_is_kept_once(
    store: ObstoreArtifactStore, registry: EventRegistry
) -> None:
    position = append(registry, event(0))
    late = EventRegistry(store)
    # A client that lost the answer to its create asks again: the number is taken by itself.
    assert late.append_event(event(0), EventPosition()) == position
    assert late.append_event(event(1), position) == EventPosition(day=position.day, number=2)


def test_a_number_that_another_writer_took_is_left_to_it(registry: EventRegistry) -> None:
    position = append(registry, event(0))
    append(registry, event(1))
    assert registry.append_event(event(2), position) is None
    assert marks(registry.last_events(10)) == ["0", "1"]


def test_a_clock_that_was_set_back_does_not_lead_into_an_earlier_day(
    registry: EventRegistry,
) -> None:
    position = append(registry, event(0, day=1), event(1, day=2))
    reached = registry.append_event(event(2, day=1), position)
    assert reached == EventPosition(day="2026-01-02", number=2)
    assert marks(list(registry.events_after(position))) == ["2"]


def test_an_event_of_a_newer_version_is_passed_over_and_logged_once(
    store: ObstoreArtifactStore, registry: EventRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    first = append(registry, event(0))
    store.create("events/2026-01-01/000002.json", b'{"kind": "of a newer version"}')
    store.create("events/2026-01-01/000003.json", b"half an eve")
    last = append(registry, event(4))
    for _ in range(2):
        assert marks(list(registry.events_after(first))) == ["4"]
        assert marks(registry.last_events(10)) == ["0", "4"]
    assert [position.number for position, _ in registry.entries_after(first)] == [2, 3, 4]
    assert last.number == 4
    assert len(caplog.records) == 2
    assert "events/2026-01-01/000002.json" in caplog.text


def test_the_newest_checkpoint_counts(registry: EventRegistry) -> None:
    for number in (1, 2):
        registry.keep_checkpoint(EventCheckpoint(last={"model m": event(number, model="m")}))
    assert registry.last_checkpoint().last["model m"].mark == "2"


def test_of_checkpoints_the_newest_two_stay(
    registry: EventRegistry, store: ObstoreArtifactStore
) -> None:
    for number in range(1, 6):
        position = EventPosition(day="2026-01-01", number=number)
        registry.keep_checkpoint(EventCheckpoint(position=position))
    assert registry.last_checkpoint().position.number == 5
    kept = [key.rpartition("/")[2] for key in store.list("event-checkpoints/")]
    assert kept == ["000004.json", "000005.json"]
