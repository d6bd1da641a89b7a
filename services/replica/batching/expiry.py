"""A timer for the earliest deadline of those that wait, so that none of them waits beyond it."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

# Timers may fire a little early; a call that is not yet due would be looked at twice.
_LATE_S = 0.001
# A long queue takes some milliseconds to look through.
LOOK_EVERY_S: Final = 0.05


class Expiry:
    """Calls a function at the earliest of the deadlines it was given, again and again.

    No sooner than `LOOK_EVERY_S` after the last time: each call of a long queue may have a deadline
    of its own, and looking through it for each would take all of the event loop's time.
    """

    def __init__(self, drop: Callable[[], float | None], clock: Callable[[], float]) -> None:
        """`drop` removes what has expired and returns the next deadline, None without any."""
        self._drop = drop
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_s = math.inf
        self._look_again_s = -math.inf

    def wake_by(self, deadline_s: float) -> None:
        """Have a look at this time of the clock or soon after it, if none is due before."""
        deadline_s = max(deadline_s, self._look_again_s)
        if deadline_s >= self._wakes_s:
            return
        self.close()
        delay_s = max(deadline_s - self._clock(), 0.0) + _LATE_S
        self._wakes_s = deadline_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def close(self) -> None:
        """Look no more, until it is given a deadline again."""
        if self._timer:
            self._timer.cancel()
        self._timer = None
        self._wakes_s = math.inf

    def _wake(self) -> None:
        self.close()
        next_s = self._drop()
        self._look_again_s = self._clock() + LOOK_EVERY_S
        if next_s is not None:
            self.wake_by(next_s)
