"""Keeps a process awake between the requests of a caller that sends one after the other.

A process that sleeps continues some 50 us after what it waits for, at four places on a request's
way: a fifth of the time of a small request on a GPU. Linux polls network devices
(`SO_BUSY_POLL`) and virtual processors (`halt_poll_ns`) for the same reason, and the latter too
only where the last wait was short.
"""

import asyncio
import time
from enum import Enum, auto
from typing import Final, Self

from services.contracts.process.processors import usable_processors

# By default: an engine of half a millisecond answers within it, through gateway and replica.
BUSY_POLL_S: Final = 0.001
# With fewer, what polls takes them from what works.
_MIN_PROCESSORS: Final = 8


class _Wait(Enum):
    ANSWER = auto()
    REQUEST = auto()


class BusyPoll:
    """Of one process: its event loop does not sleep while a request or an answer is expected soon.

    Attributes:
        num_in_flight: requests that are not answered, over all connections.
        is_polling: the event loop does not sleep.
    """

    def __init__(self, limit_s: float, *, is_asking: bool) -> None:
        """Nothing is waited for yet.

        Args:
            limit_s: longest wait that is polled; it is, where the last one of its kind was shorter.
            is_asking: this process sends the requests, and waits for answers too; one that answers
                runs its engine meanwhile.
        """
        self.num_in_flight = 0
        self.is_polling = False
        self._limit_s = limit_s
        # With more in flight the loop seldom sleeps.
        self._most_in_flight = 1 if is_asking else 0
        self._was_short = dict.fromkeys(_Wait, True)
        self._wait = _Wait.REQUEST
        self._since_s = 0.0

    @classmethod
    def if_worth(cls, limit_s: float, *, is_asking: bool) -> Self | None:
        """Make one; None for a limit of 0, and where there are few processors."""
        is_worth = limit_s and usable_processors() >= _MIN_PROCESSORS
        return cls(limit_s, is_asking=is_asking) if is_worth else None

    def began(self) -> None:
        """A request is under way."""
        self.num_in_flight += 1
        self._begin(_Wait.ANSWER)

    def ended(self) -> None:
        """A request is answered or cancelled."""
        self.num_in_flight -= 1
        self._begin(_Wait.REQUEST)

    def _begin(self, wait: _Wait) -> None:
        now_s = time.monotonic()
        self._was_short[self._wait] = now_s - self._since_s < self._limit_s
        self._wait = wait
        self._since_s = now_s
        if not self.is_polling and self._is_worth():
            self.is_polling = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _is_worth(self) -> bool:
        return self.num_in_flight <= self._most_in_flight and self._was_short[self._wait]

    def _turn(self) -> None:
        """Have the loop look for frames once more before it sleeps."""
        if self._is_worth() and time.monotonic() - self._since_s < self._limit_s:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self.is_polling = False
