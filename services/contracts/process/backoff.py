"""Waits between attempts: twice as long after each failure in a row, up to a bound."""

import random
from typing import Final

# Every bound is reached before; the power of a few thousand failures would overflow a float.
_MAX_DOUBLINGS: Final = 64


def wait_after(num_failures: int, *, first_s: float, most_s: float) -> float:
    """Seconds to wait after a number of failures in a row; doubles with each.

    Args:
        num_failures: at least one; 0 counts as one.
        first_s: wait after the first failure.
        most_s: longest wait.
    """
    doublings = min(max(num_failures - 1, 0), _MAX_DOUBLINGS)
    return float(min(first_s * 2.0**doublings, most_s))


class Backoff:
    """Pauses of one caller among many: half of each is drawn, so that they spread out."""

    def __init__(self, first_s: float, most_s: float) -> None:
        """The first pause is at most `first_s`, the longest at most `most_s`."""
        self._first_s = first_s
        self._most_s = most_s
        self._num_failures = 0

    def reset(self) -> None:
        """Begin again: the last attempt succeeded."""
        self._num_failures = 0

    def next_pause_s(self) -> float:
        """The coming pause, after one failure more."""
        self._num_failures += 1
        wait_s = wait_after(self._num_failures, first_s=self._first_s, most_s=self._most_s)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret depends on it

    async def pause(self) -> None:
        """Wait for the coming pause."""
        import asyncio  # a tenth of the time of a short command, which has no event loop

        await asyncio.sleep(self.next_pause_s())
