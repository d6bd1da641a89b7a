"""Growing pauses between attempts."""

import asyncio
import random
from typing import Final

_FACTOR: Final = 2.0


class Backoff:
    """Pauses of `first_s`, twice as long each time, never above `limit_s`."""

    def __init__(self, first_s: float, limit_s: float) -> None:
        self._first_s, self._limit_s = first_s, limit_s
        self._next_s = first_s

    def reset(self) -> None:
        """Begin again: the last attempt succeeded."""
        self._next_s = self._first_s

    def next_pause_s(self) -> float:
        """The coming pause; half of it is drawn, so that many callers spread out."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret depends on it
        self._next_s = min(self._next_s * _FACTOR, self._limit_s)
        return pause_s

    async def pause(self) -> None:
        """Wait for the coming pause."""
        await asyncio.sleep(self.next_pause_s())
