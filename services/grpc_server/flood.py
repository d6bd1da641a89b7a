"""What frames cost a client, so that none keeps a core busy for nothing.

Every frame is charged as it is read. What it did for a call is refunded: the bytes of a request
pay for the frame that brought them, an answer pays for the frames that clients send around it,
and what is sent of answers pays for the windows that are granted for it. A frame that does nothing
for any call is thus counted without anybody having thought of it (CVE-2019-9511 to 9518,
CVE-2023-44487, CVE-2025-8671). What is left is paid by time.
"""

import time
from collections.abc import Callable
from typing import Final

from services.grpc_server.frames import ErrorCode, Http2ConnectionError

# In bytes, as bytes pay for it: a request that comes in smaller pieces than this is charged.
FRAME_COST: Final = 256
# A client measures its connection, grants windows and gives other calls up between two answers.
_FRAMES_PER_ANSWER: Final = 16


class FloodGuard:
    """One connection's."""

    __slots__ = ("_clock", "_left", "_looked_s", "_most", "_per_second")

    def __init__(
        self, burst: int, per_second: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing has come yet.

        Args:
            burst: frames that may come for nothing at once.
            per_second: as many more may come with time.
            clock: gives seconds.
        """
        self._most, self._per_second = burst * FRAME_COST, per_second * FRAME_COST
        self._clock, self._looked_s, self._left = clock, clock(), self._most

    def charge(self, num_frames: int = 1) -> None:
        """A frame came, or one that is as much work as several.

        Raises:
            Http2ConnectionError: there were too many.
        """
        self._left -= num_frames * FRAME_COST
        if self._left < 0:
            self._refill()

    def refund(self, num_frames: int) -> None:
        """So many of them did what they are for."""
        self.pay(num_frames * FRAME_COST)

    def refund_data(self, num_bytes: int) -> None:
        """A frame brought so many bytes of a request: they pay for no more than that."""
        # Of what was charged before, so that there is no bound to look at.
        self._left += num_bytes if num_bytes < FRAME_COST else FRAME_COST

    def pay_answer(self) -> None:
        """An answer goes out."""
        self.pay(_FRAMES_PER_ANSWER * FRAME_COST)

    def pay(self, num_bytes: int) -> None:
        """So many bytes of answers went out. Nothing is saved up beyond the burst."""
        left = self._left + num_bytes
        # Not min(): this runs for every frame.
        self._left = left if left < self._most else self._most

    def _refill(self) -> None:
        now_s = self._clock()
        self._left += min(int((now_s - self._looked_s) * self._per_second), self._most)
        self._looked_s = now_s
        if self._left < 0:
            raise Http2ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, "too many frames that do nothing for any call"
            )
