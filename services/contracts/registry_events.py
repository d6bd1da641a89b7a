"""The event trail in the store: append, tail, follow; cheap with 100,000 events.

Events lie in a folder per day and are numbered without gaps, so that what follows a position
is found by reading the next numbers, and the newest ones by listing the last days.
"""

from collections.abc import Iterator

from services.contracts.errors import AlreadyPublishedError, NotFoundError
from services.contracts.events import Event, EventDay, EventPosition, TrailFold
from services.contracts.records import RecordKeeper, numbered_key
from services.contracts.store import ArtifactStore

_DAYS = "event-days/"
_FOLDS = "event-folds/"
_DAY_LENGTH = len("2026-11-21")


class EventRegistry(RecordKeeper):
    """Keeps events in the order in which they were appended within a day."""

    def __init__(self, store: ArtifactStore) -> None:
        super().__init__(store)
        # Last number known of a day that this process appended to.
        self._last_numbers: dict[str, int] = {}

    def append_event(self, event: Event) -> EventPosition:
        """Keep an event as the last one of its day; returns where it stands."""
        day = event.at[:_DAY_LENGTH]
        if day not in self._last_numbers:
            self._records.create(f"{_DAYS}{day}.json", EventDay(day=day))
            self._last_numbers[day] = max(self._records.numbers(_day_prefix(day)), default=0)
        number = self._last_numbers[day] + 1
        # Not `Records.append`: it would list the day each time.
        while not self._is_created(numbered_key(_day_prefix(day), number), event):
            number += 1
        self._last_numbers[day] = number
        return EventPosition(day=day, number=number)

    def events_after(self, position: EventPosition) -> Iterator[tuple[EventPosition, Event]]:
        """All events after a position, oldest first."""
        for day in self._event_days():
            if day < position.day:
                continue
            number = position.number + 1 if day == position.day else 1
            while (event := self._event(day, number)) is not None:
                yield EventPosition(day=day, number=number), event
                number += 1

    def last_events(self, limit: int, model: str = "") -> list[tuple[EventPosition, Event]]:
        """The newest events, at most `limit`, oldest first; those of one model if given."""
        found: list[tuple[EventPosition, Event]] = []
        for day in reversed(self._event_days()):
            for number in reversed(self._records.numbers(_day_prefix(day))):
                if len(found) == limit:
                    return found[::-1]
                event = self._event(day, number)
                # Without a model: hardware, which concerns every model.
                if event is not None and (not model or event.model in ("", model)):
                    found.append((EventPosition(day=day, number=number), event))
        return found[::-1]

    def event_end(self) -> EventPosition:
        """Where the next event will stand after."""
        days = self._event_days()
        if not days:
            return EventPosition()
        numbers = self._records.numbers(_day_prefix(days[-1]))
        return EventPosition(day=days[-1], number=max(numbers, default=0))

    def keep_fold(self, fold: TrailFold) -> None:
        """Keep what the trail amounts to, so that the next start need not read all of it."""
        self._records.append(_FOLDS, fold)

    def last_fold(self) -> TrailFold:
        """The newest fold that was kept; an empty one when there is none."""
        numbers = self._records.numbers(_FOLDS)
        if not numbers:
            return TrailFold()
        return self._records.read(numbered_key(_FOLDS, numbers[-1]), TrailFold)

    def _event(self, day: str, number: int) -> Event | None:
        try:
            # Not through the cache of `Records`: a trail of years would stay in memory.
            return Event.from_json(self._store.read(numbered_key(_day_prefix(day), number)))
        except NotFoundError:
            return None

    def _event_days(self) -> list[str]:
        return [key.removeprefix(_DAYS).removesuffix(".json") for key in self._records.keys(_DAYS)]

    def _is_created(self, key: str, event: Event) -> bool:
        try:
            self._records.create(key, event)
        except AlreadyPublishedError:
            return False
        return True


def _day_prefix(day: str) -> str:
    return f"events/{day}/"
