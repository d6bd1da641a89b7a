"""Keeps a process awake between the frames of a caller that sends one request after the other.

A process that sleeps continues some 50 us after what it waits for, at four places on a request's
way: a quarter of the time of a small request on a GPU. Linux polls network devices
(`SO_BUSY_POLL`) and virtual processors (`halt_poll_ns`) for the same reason, and the latter too
only where the last wait was short.
"""

import asyncio
import os
import time
from collections.abc import Sized
from typing import Final, Self

# By default: an engine of 0.2 ms answers within it, and so does a client on the same host.
BUSY_POLL_S: Final = 0.0005
# That the process may use: with fewer, what polls takes them from what works.
_MIN_PROCESSORS: Final = 8


class BusyPoll:
    """Of one connection: the event loop does not sleep while the next frame is expected soon."""

    def __init__(self, limit_s: float, in_flight: Sized, *, is_asking: bool) -> None:
        """Nothing is waited for yet.

        Args:
            limit_s: longest wait that is polled; it is, when the last one of its kind was shorter.
            in_flight: requests that are not answered; with several the loop seldom sleeps.
            is_asking: this end sends the requests; the other one works when it has received one.
        """
        self._limit_s = limit_s
        self._in_flight = in_flight
        self._polls = {"sent": True, "received": is_asking}
        self._was_short = {"sent": True, "received": True}
        self._loop = asyncio.get_running_loop()
        self._wait = "sent"
        self._since_s = 0.0
        self._is_turning = False

    @classmethod
    def if_worth(cls, limit_s: float, in_flight: Sized, *, is_asking: bool) -> Self | None:
        """Make one; None for a limit of 0, and where there are few processors.

        Args:
            limit_s: see `BusyPoll`, as for all others.
            in_flight: requests that are not answered.
            is_asking: this end sends the requests.
        """
        if not limit_s or len(os.sched_getaffinity(0)) < _MIN_PROCESSORS:
            return None
        return cls(limit_s, in_flight, is_asking=is_asking)

    def note(self, wait: str) -> None:
        """A frame was `sent` or `received`: one wait ends, the next begins."""
        now_s = time.monotonic()
        self._was_short[self._wait] = now_s - self._since_s < self._limit_s
        self._wait = wait
        self._since_s = now_s
        if not self._is_turning and self._is_polled():
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _is_polled(self) -> bool:
        is_lone = len(self._in_flight) <= 1
        return is_lone and self._polls[self._wait] and self._was_short[self._wait]

    def _turn(self) -> None:
        """Have the loop look for frames once more before it sleeps."""
        if self._is_polled() and time.monotonic() - self._since_s < self._limit_s:
            self._loop.call_soon(self._turn)
        else:
            self._is_turning = False
