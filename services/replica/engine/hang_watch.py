"""Ends a replica whose event loop is held for good by the engine that runs on it.

Brief engines run on the loop, so nothing there can find that one hangs: no health check, no
report, no answer. Serve would wait through three health checks of half a minute each.
"""

import logging
import os
import threading
from collections.abc import Callable

from services.replica.replica import Replica

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
# A process that was stopped for a while finds its clock ahead at one look, not at two.
_NUM_LOOKS = 2
# EX_SOFTWARE of sysexits.h.
_EXIT_STATUS = 70


def end_process() -> None:
    """End at once: neither the loop nor the engine's library would let it end otherwise."""
    os._exit(_EXIT_STATUS)


class HangWatch:
    """A thread that looks at a replica now and then; it costs requests nothing."""

    def __init__(
        self, replica: Replica, end: Callable[[], None], *, period_s: float = _PERIOD_S
    ) -> None:
        """Take whom to watch and what to do; `start` begins.

        Args:
            replica: asked from the watch's own thread.
            end: called once, when an engine holds the loop longer than a run may take.
            period_s: between two looks.
        """
        self._replica = replica
        self._end = end
        self._period_s = period_s
        self._has_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; waits for a look that is under way."""
        self._has_stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        num_seen = 0
        while not self._has_stopped.wait(self._period_s):
            num_seen = num_seen + 1 if self._replica.is_loop_held else 0
            if num_seen == _NUM_LOOKS:
                words = "the engine holds the event loop and does not return"
                logger.critical("%s; the process ends", words)
                self._replica.blame_engine(words)
                self._end()
                return
