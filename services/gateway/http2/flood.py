"""What a peer may make a server do that asks nothing of it.

Frames like PING or RST_STREAM cost the peer nothing and us work; without a bound one connection
could keep a core busy (CVE-2019-9512 and those beside it, CVE-2023-44487). A client that is
answered has reason to send some, so answers earn room.
"""

import time
from collections.abc import Callable
from typing import Final

from services.gateway.http2.frames import ConnectionFault, ErrorCode

# Clients that hedge or change their mind reset streams in earnest: a thousand a second, for as
# long as they like, are no attack yet. Streams whose deadline has come are not counted at all.
BURST: Final = 10_000
PER_SECOND: Final = 1_000
_PER_ANSWER: Final = 4


class FloodGuard:
    """One connection's."""

    __slots__ = ("_clock", "_left", "_looked_s")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock, self._looked_s, self._left = clock, clock(), BURST

    def spend(self, cost: int = 1) -> None:
        """Such a frame came.

        Raises:
            ConnectionFault: there were too many.
        """
        self._left -= cost
        if self._left < 0:
            self._refill()

    def earn(self) -> None:
        """One answer went out."""
        if self._left < BURST:
            self._left += _PER_ANSWER

    def _refill(self) -> None:
        now_s = self._clock()
        self._left += min(int((now_s - self._looked_s) * PER_SECOND), BURST)
        self._looked_s = now_s
        if self._left < 0:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask nothing of this server"
            )
