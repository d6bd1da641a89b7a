"""Events in the store: append, tail, follow; cheap with 100,000 of them.

Events are in a folder per day and are numbered without gaps, so that what follows a position
is found by reading the next numbers, and the newest ones by listing the last days.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress

from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.events import Event, EventCheckpoint, EventDay, EventPosition
from services.contracts.registry.records import RecordKeeper, numbered_key, parsed
from services.contracts.store.artifact_store import ArtifactStore

_logger = logging.getLogger(__name__)
_DAYS = "event-days/"
_CHECKPOINTS = "event-checkpoints/"
_DAY_LENGTH = len("2026-11-21")


class EventRegistry(RecordKeeper):
    """Keeps events in the order in which they were appended within a day."""

    def __init__(self, store: ArtifactStore) -> None:
        super().__init__(store)
        # Those of a newer controller: logged once, and not read again.
        self._unreadable: set[str] = set()

    def append_event(self, event: Event, after: EventPosition) -> EventPosition | None:
        """Keep an event right after a position, which is the newest that the writer knows.

        A clock that was set back does not lead back into an earlier day: readers are past it.

        Returns:
            Where it is; None when another writer was first, whose event has to be taken in before
            it is known what is new.
        """
        day = max(event.at[:_DAY_LENGTH], after.day)
        if day != after.day:
            self._records.create(f"{_DAYS}{day}.json", EventDay(day=day))
        number = after.number + 1 if day == after.day else 1
        try:
            # Not `Records.append`: it would list the day each time.
            self._records.create(numbered_key(_day_prefix(day), number), event)
        except AlreadyPublishedError:
            return None
        return EventPosition(day=day, number=number)

    def events_after(self, position: EventPosition) -> Iterator[tuple[EventPosition, Event]]:
        """All events after a position, oldest first, less those that cannot be read."""
        for reached, event in self.entries_after(position):
            if event is not None:
                yield reached, event

    def entries_after(
        self, position: EventPosition
    ) -> Iterator[tuple[EventPosition, Event | None]]:
        """As `events_after`; None stands for an event that this version cannot read."""
        for day in self._event_days():
            if day < position.day:
                continue
            number = position.number + 1 if day == position.day else 1
            with suppress(NotFoundError):
                while True:
                    event = self._event(day, number)
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

    def keep_checkpoint(self, checkpoint: EventCheckpoint) -> None:
        """Keep what the events amount to, so that the next start need not read all of them.

        The one before stays too, for who reads it now; older ones go, where the store allows it.
        """
        number = self._records.append(_CHECKPOINTS, checkpoint)
        for older in self._records.numbers(_CHECKPOINTS):
            if older < number - 1:
                with suppress(StoreError):
                    self._store.delete(numbered_key(_CHECKPOINTS, older))

    def last_checkpoint(self) -> EventCheckpoint:
        """The newest checkpoint that was kept; an empty one when there is none.

        Raises StoreError.
        """
        numbers = self._records.numbers(_CHECKPOINTS)
        if not numbers:
            return EventCheckpoint()
        key = numbered_key(_CHECKPOINTS, numbers[-1])
        return parsed(key, self._store.read(key), EventCheckpoint)

    def _event(self, day: str, number: int) -> Event | None:
        """An event; None when it cannot be read. Raises NotFoundError."""
        key = numbered_key(_day_prefix(day), number)
        if key in self._unreadable:
            return None
        # Not through the cache of `Records`: events of years would stay in memory.
        data = self._store.read(key)
        try:
            return parsed(key, data, Event)
        except StoreError as error:
            self._unreadable.add(key)
            _logger.warning("an event is left out: %s", error)
            return None

    def _event_days(self) -> list[str]:
        return [key.removeprefix(_DAYS).removesuffix(".json") for key in self._records.keys(_DAYS)]


def _day_prefix(day: str) -> str:
    return f"events/{day}/"
