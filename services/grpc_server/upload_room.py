"""Room for large requests: how many bytes of them a process takes at a time, over all clients.

A request says its size before its bytes, so a client is let send all of it or, until others are
done, no more than its stream's first window. Whatever has been begun can thus always be ended.
First windows of those that wait lie beside the room, and so does all else that is not finished:
`UnfinishedBytes` is the bound of that.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final, NamedTuple

# Within so many looks all of a request must be here, whatever its size.
_TIMES: Final = 20


class Sender(NamedTuple):
    """The client that sends a request.

    Attributes:
        num_bytes: that it sends.
        num_received: how many came by now, from any number on.
        on_idle: is called when others wait for room that it makes too little use of.
    """

    num_bytes: int
    num_received: Callable[[], int]
    on_idle: Callable[[], None]


class Share:
    """One request's part of the room.

    Attributes:
        is_given: its client may send.
        is_whole: its client has nothing to do any more, and is not looked at.
        num_bytes: of the room.
    """

    __slots__ = ("_num_due", "_num_seen", "_room", "_sender", "is_given", "is_whole",
                 "num_bytes", "on_given")  # fmt: skip

    def __init__(
        self,
        room: "UploadRoom",
        num_bytes: int,
        on_given: Callable[[], None],
        sender: Sender | None,
    ) -> None:
        self._room, self.num_bytes = room, num_bytes
        self.on_given, self._sender = on_given, sender
        self.is_given, self.is_whole = False, sender is None
        # Received at the last look, and what must be by the next one.
        self._num_seen: int | None = None
        self._num_due = 0

    def leave(self) -> None:
        """It needs no room any more; a second call does nothing."""
        self._room.leave(self)

    def shrink(self, num_bytes: int) -> None:
        """It needs no more than this, as it turns out."""
        self._room.shrink(self, num_bytes)

    def look(self) -> None:
        """End the request if its client stands still, or will not be done in time."""
        sender = self._sender
        if sender is None or self.is_whole:
            return
        seen, self._num_seen = self._num_seen, sender.num_received()
        if seen is None:
            self._num_due = self._num_seen
        elif self._num_seen == seen or self._num_seen < self._num_due:
            sender.on_idle()
        self._num_due += sender.num_bytes // _TIMES


class UnfinishedBytes:
    """What this process holds of requests that have no room: over all of its connections.

    That is what came of a request that is not whole, what waits for room, what a stream's handler
    has not taken yet, and metadata of calls that no other call shares.

    Attributes:
        num_bytes: held now.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` may be held; whatever comes beyond is refused with its call."""
        self.num_bytes, self._max_bytes = 0, max_bytes

    @property
    def is_full(self) -> bool:
        """Whether that is more than may be held."""
        return self.num_bytes > self._max_bytes

    @property
    def is_scarce(self) -> bool:
        """Whether so much is held that nobody should stand still with it."""
        return self.num_bytes > self._max_bytes // 2

    def count(self, num_bytes: int) -> None:
        """So many bytes more are held, or fewer."""
        self.num_bytes += num_bytes


class UploadRoom:
    """The room of one process; first come, first served."""

    def __init__(self, max_bytes: int, stall_timeout_s: float) -> None:
        """Nothing is taken yet; one request alone may be larger than all of it.

        Args:
            max_bytes: of all requests that have room.
            stall_timeout_s: how often those that have are looked at while others wait.
        """
        self._max_bytes, self._patience_s = max_bytes, stall_timeout_s
        self._num_bytes = 0
        self._given: set[Share] = set()
        self._waiting: dict[Share, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that have no room yet."""
        return len(self._waiting)

    def ask(
        self,
        num_bytes: int,
        on_given: Callable[[], None],
        sender: Sender | None = None,
    ) -> Share:
        """A share of so many bytes, which may have been given.

        Args:
            num_bytes: of the request.
            on_given: is called when there is room later.
            sender: of the request; None when it is here.
        """
        share = Share(self, num_bytes, on_given, sender)
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
        # It goes on when nobody waits: those who come may give up sooner, one after another.
        if self._waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            # In nobody's context: whom it ends is not the caller that waits.
            self._timer = loop.call_later(self._patience_s, self.look, context=Context())

    def look(self) -> None:
        """End those that make too little use of their room; runs on a timer while others wait."""
        self._timer = None
        for share in tuple(self._given):
            share.look()
        self._keep_time()
