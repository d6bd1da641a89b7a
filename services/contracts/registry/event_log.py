"""Events in the store: append, tail, follow; cheap with 100,000 of them.

Events are in a folder per day and are numbered without gaps, so that what follows a position
is found by reading the next numbers, and the newest ones by listing the last days.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.events import Event, EventCheckpoint, EventDay, EventPosition
from services.contracts.registry.records import RecordKeeper, numbered_key, parsed
from services.contracts.store.artifact_store import ArtifactStore

_logger = logging.getLogger(__name__)
_DAYS = "event-days/"
_CHECKPOINTS = "event-checkpoints/"
_DAY_LENGTH = len("2026-11-21")
# As many as a command may wait for: 16 at once, some seconds with an object store.
MOST_SEARCHED: Final = 2000
_READS_AT_ONCE: Final = 16
_SEARCHED_AT_ONCE: Final = 128


class FoundEvents(NamedTuple):
    """What a search has found.

    Attributes:
        events: oldest first.
        is_cut: there may be more among older events, which were not read.
    """

    events: list[tuple[EventPosition, Event]]
    is_cut: bool


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

    def last_events(self, limit: int) -> list[tuple[EventPosition, Event]]:
        """The newest events, at most `limit`, oldest first; raises as `search_events` does."""
        return self.search_events(limit, lambda _: True).events

    def search_events(self, limit: int, is_wanted: Callable[[Event], bool]) -> FoundEvents:
        """The newest `limit` of such events, among the newest `MOST_SEARCHED` of all, or `limit`.

        A trail of years, in which few are wanted, is not read to its beginning.

        Args:
            limit: on how many are found.
            is_wanted: which are.

        Raises:
            StoreError: the store failed.
            NotFoundError: an event was pruned meanwhile.
        """
        found: list[tuple[EventPosition, Event]] = []
        num_left = max(limit, MOST_SEARCHED)
        # Where all are wanted, no more are read than are found.
        num_next = limit
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            newest = self._newest_first(pool)
            while len(found) < limit and (some := list(islice(newest, min(num_next, num_left)))):
                events = pool.map(lambda each: self._event(each.day, each.number), some)
                read = zip(some, events, strict=True)
                found += [(each, event) for each, event in read if event and is_wanted(event)]
                num_left -= len(some)
                num_next = _SEARCHED_AT_ONCE
            is_cut = len(found) < limit and next(newest, None) is not None
        return FoundEvents(found[:limit][::-1], is_cut)

    def _newest_first(self, pool: ThreadPoolExecutor) -> Iterator[EventPosition]:
        """Where events are."""
        days = self._event_days()
        num_days = 1
        while days:
            some = days[-num_days:]
            del days[-num_days:]
            listed = pool.map(lambda day: self._records.numbers(_day_prefix(day)), some)
            for day, numbers in reversed(list(zip(some, listed, strict=True))):
                yield from (EventPosition(day=day, number=number) for number in reversed(numbers))
            # The last day most often has enough; where days have few events, many are wanted.
            num_days = min(2 * num_days, _READS_AT_ONCE)

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
