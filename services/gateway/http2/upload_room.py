"""Room for large requests: how many bytes of them a process takes at a time, over all clients.

A request says its size before its bytes, so a client is let send all of it or, until others are
done, no more than its stream's first window. Whatever has been begun can thus always be ended.
First windows of those that wait lie beside the room, so no more than a few may wait.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final

from services.gateway.http2.limits import STREAM_WINDOW

# Of a room, as many bytes may wait beside it, and at least so many requests.
_WAITING_PART: Final = 1 / 4
_MIN_WAITING: Final = 8
# While others wait, whoever has room must use it: looked at so often,
_PATIENCE_S: Final = 30.0
# and in so many of these times all of the request must be here, whatever its size.
_TIMES: Final = 20


class Share:
    """One request's part of the room.

    Attributes:
        is_given: its client may send.
        is_whole: its client has nothing to do any more, and is not looked at.
        num_granted: bytes that its client was let send.
        num_bytes: of the room.
    """

    __slots__ = ("_num_seen", "_on_idle", "_pace", "_room", "is_given", "is_whole", "num_bytes",
                 "num_granted", "on_given")  # fmt: skip

    def __init__(
        self,
        room: "UploadRoom",
        num_bytes: int,
        on_given: Callable[[], None],
        on_idle: Callable[[], None],
        num_sent: int,
    ) -> None:
        self._room, self.num_bytes = room, num_bytes
        self.on_given, self._on_idle = on_given, on_idle
        self.is_given = self.is_whole = False
        self.num_granted = 0
        self._num_seen: int | None = None
        self._pace = max(num_sent // _TIMES, 1)

    def leave(self) -> None:
        """It needs no room any more; a second call does nothing."""
        self._room.leave(self)

    def shrink(self, num_bytes: int) -> None:
        """It needs no more than this, as it turns out."""
        self._room.shrink(self, num_bytes)

    def look(self) -> None:
        """End the request if its client has sent too little since the last look."""
        seen, self._num_seen = self._num_seen, self.num_granted
        if not self.is_whole and seen is not None and self.num_granted - seen < self._pace:
            self._on_idle()


class UploadRoom:
    """The room of one process; first come, first served."""

    def __init__(
        self, max_bytes: int, patience_s: float = _PATIENCE_S, *, min_waiting: int = _MIN_WAITING
    ) -> None:
        """Nothing is taken yet; one request alone may be larger than all of it.

        Args:
            max_bytes: of all requests that have room.
            patience_s: how long one that has may stand still while others wait.
            min_waiting: so many may wait, however small the room is.
        """
        self._max_bytes, self._patience_s = max_bytes, patience_s
        self._max_waiting = max(int(max_bytes * _WAITING_PART) // STREAM_WINDOW, min_waiting)
        self._num_bytes = 0
        self._given: set[Share] = set()
        self._waiting: dict[Share, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether no more requests should wait, each with a window's bytes in memory."""
        return len(self._waiting) >= self._max_waiting

    def ask(
        self,
        num_bytes: int,
        on_given: Callable[[], None],
        on_idle: Callable[[], None] = lambda: None,
        num_sent: int = 0,
    ) -> Share:
        """A share of so many bytes, which may have been given.

        Args:
            num_bytes: of the request.
            on_given: is called when there is room later.
            on_idle: is called when others wait for room that the client makes too little use of.
            num_sent: bytes that the client sends for it.
        """
        share = Share(self, num_bytes, on_given, on_idle, num_sent)
        if not self._waiting and self._has_room(share):
            self._take(share)
        else:
            self._waiting[share] = None
            self._keep_time()
        return share

    def leave(self, share: Share) -> None:
        """It needs no room any more; a second call does nothing."""
        self._waiting.pop(share, None)
        if share in self._given:
            self._given.discard(share)
            self._num_bytes -= share.num_bytes
        self._give()

    def shrink(self, share: Share, num_bytes: int) -> None:
        """It needs no more than this, as it turns out."""
        if share in self._given and num_bytes < share.num_bytes:
            self._num_bytes -= share.num_bytes - num_bytes
            share.num_bytes = num_bytes
            self._give()

    def _give(self) -> None:
        while self._waiting and self._has_room(share := next(iter(self._waiting))):
            del self._waiting[share]
            self._take(share)
            share.on_given()
        self._keep_time()

    def _has_room(self, share: Share) -> bool:
        return not self._given or self._num_bytes + share.num_bytes <= self._max_bytes

    def _take(self, share: Share) -> None:
        self._given.add(share)
        self._num_bytes += share.num_bytes
        share.is_given = True

    def _keep_time(self) -> None:
        if self._waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            # In nobody's context: whom it ends is not the caller that waits.
            self._timer = loop.call_later(self._patience_s, self._look, context=Context())
        elif not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        for share in tuple(self._given):
            share.look()
        self._keep_time()
