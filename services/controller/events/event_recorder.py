"""Appends to the store's events what is new, and keeps in mind what they amount to."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from services.contracts.errors import StoreError
from services.contracts.events import Event, EventPosition
from services.contracts.registry.event_log import EventRegistry
from services.contracts.text.moments import timestamp, utc_now
from services.controller.build.build_view import FleetView
from services.controller.events.event_diff import build_events, hardware_events
from services.controller.events.event_state import EventState
from services.controller.events.joint_events import joint_events
from services.controller.events.request_events import model_events
from services.controller.events.serving_events import (
    external_models,
    lost_replicas,
    restored_replicas,
    serving_events,
    serving_of,
    unplaced_replicas,
    without_missing,
)
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)

# Replicas of a controller before try to attach every few seconds.
_ATTACH_WITHIN_S = 30.0

Diff = Callable[[EventState], Iterable[Event]]


class EventRecorder:
    """The one writer of events; methods block, and may be called from several threads.

    An event is recorded when it is in the store: the state in memory is only ever what the stored
    events amount to, so a kill at any instant neither repeats nor loses one.
    """

    def __init__(
        self,
        registry: EventRegistry,
        *,
        events_per_checkpoint: int = 200,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read yet.

        Args:
            registry: where events are.
            events_per_checkpoint: a start reads at most so many, and the checkpoint before them.
            clock: monotonic seconds.
        """
        self._clock = clock
        self._attached_s = clock() + _ATTACH_WITHIN_S
        self._registry = registry
        self._events_per_checkpoint = events_per_checkpoint
        self._lock = threading.Lock()
        self._state = EventState()
        self._is_loaded = False
        self._num_unkept = 0

    def observe(self, view: FleetView) -> None:
        """Record what hardware, models and builds have become; raises StoreError."""
        # Joint runs come after the proofs that they compare.
        diffs = (hardware_events, model_events, build_events, joint_events)
        self._record(*(partial(diff, view=view) for diff in diffs))

    def observe_once(self, events: Iterable[Event]) -> None:
        """Record those that are new; raises StoreError."""
        self._record(partial(EventState.new, events=list(events)))

    def observe_serving(self, served: Iterable[Event]) -> None:
        """Record what serves where, see `serving_of`; raises StoreError."""
        self._record(partial(serving_events, served=list(served)))

    def observe_replicas(self, snapshot: fleet.FleetSnapshot) -> None:
        """Record what serves, and which replicas are lost, back or unplaced; raises StoreError."""
        happened = (unplaced_replicas, lost_replicas, external_models)
        self.observe_once(event for each in happened for event in each(snapshot))
        self._record(partial(restored_replicas, snapshot=snapshot))
        served = serving_of(snapshot)
        if self._clock() < self._attached_s:
            # Of two replicas, the one that attached first may be the one that swaps last.
            served = without_missing(served, snapshot)
        self.observe_serving(served)

    def _record(self, *diffs: Diff) -> None:
        with self._lock:
            if not self._is_loaded:
                self._catch_up()
            for diff in diffs:
                # Replicas report often and rarely anything new: the store is read only then.
                if any(diff(self._state)):
                    self._catch_up()
                    self._append(diff)

    def _catch_up(self) -> None:
        """Take in what is in the store: at the start, and of another controller."""
        if not self._is_loaded:
            try:
                self._state = EventState(self._registry.last_checkpoint())
            except StoreError as error:
                logger.warning("events are read from the first one: %s", error)
            self._is_loaded = True
        for position, event in self._registry.entries_after(self._state.position):
            self._take(event, position)

    def _append(self, diff: Diff) -> None:
        """Append what is new to the state; once more whenever another writer came between."""
        while not self._are_appended(diff(self._state)):
            known = self._state.position
            self._catch_up()
            if self._state.position == known:
                raise StoreError(
                    f"the event after {known.day}/{known.number} is taken and cannot be read"
                )

    def _are_appended(self, events: Iterable[Event]) -> bool:
        # All of them before the first is taken in: the state changes with each.
        for event in list(events):
            timed = self._timed(event, utc_now())
            position = self._registry.append_event(timed, self._state.position)
            if position is None:
                return False
            self._take(timed, position)
            logger.info(
                "%s: model=%s version=%d generation=%s %s",
                timed.kind,
                timed.model,
                timed.version,
                timed.generation,
                timed.words,
            )
        return True

    def _timed(self, event: Event, now: datetime) -> Event:
        changed = self._state.changed_at(event)
        # Engines and proofs have their time; what is older than the change did not
        # follow from it.
        happened = _parsed(event.mark) or now
        seconds = (now - datetime.fromisoformat(changed)).total_seconds() if changed else None
        is_older = bool(changed) and happened < datetime.fromisoformat(changed)
        return event.model_copy(
            update={"at": timestamp(now), "seconds_since_change": None if is_older else seconds}
        )

    def _take(self, event: Event | None, position: EventPosition) -> None:
        """Move on to a position; what cannot be read there changes nothing else."""
        try:
            if event:
                self._state.apply(event)
        except ValueError as error:
            logger.warning("event %s/%d is left out: %s", position.day, position.number, error)
        self._state.position = position
        self._num_unkept += 1
        if self._num_unkept >= self._events_per_checkpoint:
            self._registry.keep_checkpoint(self._state.checkpoint())
            self._num_unkept = 0


def _parsed(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
