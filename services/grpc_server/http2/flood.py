"""Limits the frames of a connection that do nothing for any call.

Every frame is charged as it is read, and useful work refunds: bytes of a request refund their DATA
frame, an answer the frames that clients send with it, and bytes of answers their WINDOW_UPDATE
frames. Frames that no rule foresees are thus limited too (CVE-2019-9511 to 9518, CVE-2023-44487,
CVE-2025-8671). The rest is refunded with time.
"""

import time
from collections.abc import Callable
from typing import Final

from services.grpc_server.http2.frames import ErrorCode, Http2ConnectionError

# In bytes, which refund it: smaller DATA frames than this are charged in part.
FRAME_COST: Final = 256
# Clients send PING, WINDOW_UPDATE and RST_STREAM between two answers.
_FRAMES_PER_ANSWER: Final = 16


class FloodGuard:
    """One connection's."""

    __slots__ = ("_clock", "_most", "_per_second", "_refilled_s", "left")

    def __init__(
        self, burst: int, per_second: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is charged.

        Args:
            burst: frames that may be charged at once.
            per_second: refunded with time.
            clock: gives seconds.

        Attributes:
            left: bytes that may be charged, FRAME_COST for a frame.
        """
        self._most = burst * FRAME_COST
        self._per_second = per_second * FRAME_COST
        self._clock = clock
        self._refilled_s = clock()
        self.left = self._most

    def charge(self, num_frames: int = 1) -> None:
        """Charge a frame, or one that costs as much as several.

        Raises:
            Http2ConnectionError: too many frames are charged.
        """
        self.left -= num_frames * FRAME_COST
        if self.left < 0:
            self._refill()

    def refund(self, num_frames: int) -> None:
        """Refund so many frames."""
        self.pay(num_frames * FRAME_COST)

    def refund_data(self, num_bytes: int) -> None:
        """Refund a DATA frame with so many bytes, up to its cost."""
        # It was charged before, so that the sum stays below the burst.
        self.left += num_bytes if num_bytes < FRAME_COST else FRAME_COST

    def pay_answer(self) -> None:
        """Refund the frames around an answer."""
        self.pay(_FRAMES_PER_ANSWER * FRAME_COST)

    def pay(self, num_bytes: int) -> None:
        """Refund so many bytes of answers, never beyond the burst."""
        left = self.left + num_bytes
        # Not min(): this runs for every frame.
        self.left = left if left < self._most else self._most

    def _refill(self) -> None:
        now_s = self._clock()
        self.left += min(int((now_s - self._refilled_s) * self._per_second), self._most)
        self._refilled_s = now_s
        if self.left < 0:
            raise Http2ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, "excessive control or empty frames"
            )
