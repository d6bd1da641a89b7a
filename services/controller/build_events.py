"""Appends to the event trail what is news, and keeps in mind what it amounts to."""

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import datetime

from services.contracts.build_plan import timestamp, utc_now
from services.contracts.errors import StoreError
from services.contracts.events import Event, EventPosition, TrailFold
from services.contracts.registry_events import EventRegistry
from services.controller.build_order import Quarantined
from services.controller.build_policy import Unplanned
from services.controller.build_view import FleetView
from services.controller.event_fold import changed_at, fold_event
from services.controller.event_news import (
    Serving,
    build_news,
    hardware_news,
    model_news,
    serving_news,
)
from services.controller.failure_news import quarantine_news, unplaced_news, unplanned_news
from services.controller.joint_news import joint_news
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)


class EventTrail:
    """The one writer of events; methods block, and may be called from several threads.

    An event counts as told when it stands in the store: the fold in memory is only ever what
    the stored events amount to, so a kill at any instant neither repeats nor loses one.
    """

    def __init__(self, registry: EventRegistry, *, events_per_fold: int = 200) -> None:
        """A start reads at most `events_per_fold` events, and the fold before them."""
        self._registry, self._events_per_fold = registry, events_per_fold
        self._lock = threading.Lock()
        self._fold = TrailFold()
        self._is_loaded = False
        self._num_unkept = 0

    def observe(self, view: FleetView) -> None:
        """Tell what hardware, models and builds have become; raises StoreError."""
        with self._lock:
            self._catch_up()
            self._tell(lambda fold: hardware_news(fold, view))
            self._tell(lambda fold: model_news(fold, view))
            self._tell(lambda fold: build_news(fold, view))
            # After the proofs that it compares.
            self._tell(lambda fold: joint_news(fold, view))

    def observe_failures(
        self, quarantined: Iterable[Quarantined], unplanned: Iterable[Unplanned] = ()
    ) -> None:
        """Tell what was given up, and which tasks made no plan; raises StoreError."""
        with self._lock:
            if not self._is_loaded:
                self._catch_up()
            seen, ended = list(quarantined), list(unplanned)
            self._tell(lambda fold: unplanned_news(fold, ended))
            self._tell(lambda fold: quarantine_news(fold, seen))

    def observe_serving(self, served: Iterable[Serving]) -> None:
        """Tell what serves where; raises StoreError."""
        with self._lock:
            seen = list(served)
            # Replicas report often and rarely anything new: the store is read for news only.
            if not self._is_loaded or any(serving_news(self._fold, seen)):
                self._catch_up()
                self._tell(lambda fold: serving_news(fold, seen))

    def observe_unplaced(self, snapshot: fleet.FleetSnapshot) -> None:
        """Tell which versions have replicas that no node has room for; raises StoreError."""
        with self._lock:
            if not self._is_loaded or any(unplaced_news(self._fold, snapshot)):
                self._catch_up()
                self._tell(lambda fold: unplaced_news(fold, snapshot))

    def _catch_up(self) -> None:
        """Take in what stands in the store: at the start, and of another controller."""
        if not self._is_loaded:
            try:
                self._fold = self._registry.last_fold()
            except StoreError as error:
                logger.warning("the event trail is read from its beginning: %s", error)
            self._is_loaded = True
        for position, event in self._registry.entries_after(self._fold.position):
            self._take(event, position)

    def _tell(self, news_to: Callable[[TrailFold], Iterable[Event]]) -> None:
        """Append what is news to the fold; once more whenever another writer came between."""
        while not self._is_told(news_to(self._fold)):
            known = self._fold.position
            self._catch_up()
            if self._fold.position == known:
                raise StoreError(
                    f"the event after {known.day}/{known.number} is taken and cannot be read"
                )

    def _is_told(self, news: Iterable[Event]) -> bool:
        for event in news:
            timed = self._timed(event, utc_now())
            position = self._registry.append_event(timed, self._fold.position)
            if position is None:
                return False
            self._take(timed, position)
            logger.info(
                "%s: model=%s version=%d generation=%s %s",
                timed.kind, timed.model, timed.version, timed.generation, timed.why,
            )  # fmt: skip
        return True

    def _timed(self, event: Event, now: datetime) -> Event:
        changed = changed_at(self._fold, event)
        # Engines and proofs say when they were made; what is older than the change did not
        # follow from it.
        happened = _parsed(event.mark) or now
        seconds = (now - datetime.fromisoformat(changed)).total_seconds() if changed else None
        is_older = bool(changed) and happened < datetime.fromisoformat(changed)
        return event.model_copy(
            update={"at": timestamp(now), "seconds_since_change": None if is_older else seconds}
        )

    def _take(self, event: Event | None, position: EventPosition) -> None:
        """Move on to a position; what cannot be read there changes nothing else."""
        moved = self._fold.model_copy(update={"position": position})
        try:
            self._fold = fold_event(self._fold, event, position) if event else moved
        except ValueError as error:
            logger.warning("event %s/%d is left out: %s", position.day, position.number, error)
            self._fold = moved
        self._num_unkept += 1
        if self._num_unkept >= self._events_per_fold:
            self._registry.keep_fold(self._fold)
            self._num_unkept = 0


def _parsed(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
