"""What takes long to read, read in a thread of its own while somebody looks at the page."""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from services.contracts.errors import SmeltError
from services.contracts.events import EventPosition
from services.contracts.registry.registry import Registry
from services.controller.metrics.build_metrics import LatestView
from services.controller.page.live_rates import LiveRates

logger = logging.getLogger(__name__)

# Ray's agents renew their pages each 10 s.
_AGAIN_S: Final = 10.0
_NUM_READ_FIRST: Final = 100
_NUM_KEPT: Final = 1000


@dataclass(frozen=True)
class Reads:
    """What was read last.

    Attributes:
        events: as plain data, oldest first.
        rates: by model and version, as `LiveRates` has them.
    """

    events: Sequence[dict[str, Any]] = ()
    rates: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)


class BackgroundReads:
    """Reads events and rates again when asked, at most each ten seconds.

    Attributes:
        shown: another one after each reading.
    """

    def __init__(self, registry: Registry, latest: LatestView) -> None:
        """Nothing is read yet.

        Args:
            registry: for the events before the first look.
            latest: has the store as the build loop saw it, whose days are listed already.
        """
        self._registry = registry
        self._latest = latest
        self._rates = LiveRates()
        self._events: deque[dict[str, Any]] = deque(maxlen=_NUM_KEPT)
        self._position: EventPosition | None = None
        self._thread: threading.Thread | None = None
        self._began_s = float("-inf")
        self.shown = Reads()

    def refresh(self, addresses: Iterable[str], now_s: float) -> None:
        """Begin to read again if it is time; returns at once. From one thread at a time.

        Args:
            addresses: `host:port` of the nodes' metrics agents.
            now_s: monotonic seconds.
        """
        if now_s - self._began_s < _AGAIN_S or (self._thread and self._thread.is_alive()):
            return
        self._began_s = now_s
        # A daemon: an agent that does not answer must not keep the process from its end.
        self._thread = threading.Thread(
            target=self._read, args=(list(addresses), now_s), name="page", daemon=True
        )
        self._thread.start()

    def _read(self, addresses: Sequence[str], now_s: float) -> None:
        try:
            self._follow_events()
        except SmeltError as error:
            logger.warning("the page's events are read again later: %s", error)
        try:
            self._rates.look(addresses, now_s)
        except (ValueError, KeyError) as error:
            logger.warning("the page shows no rates: an agent's metrics cannot be read: %r", error)
        self.shown = Reads(tuple(self._events), self._rates.rates())

    def _follow_events(self) -> None:
        if self._position is None:
            found = self._registry.last_events(_NUM_READ_FIRST)
            self._position = EventPosition()
        else:
            latest = self._latest()
            found = list((latest[1] if latest else self._registry).events_after(self._position))
        for position, event in found:
            self._position = position
            self._events.append(event.model_dump(mode="json"))
