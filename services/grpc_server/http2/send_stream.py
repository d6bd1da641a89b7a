"""The sending side of one stream: messages that wait for flow control, and what comes behind."""

import asyncio
from collections import deque
from typing import Final

from services.grpc_server.request.messages import PREFIX, Message

# A handler of a stream waits while more than this of its answers is pending.
_AHEAD_BYTES: Final = 256 << 10


class SendStream:
    """The sending side of one stream.

    Attributes:
        stream_id: of the stream.
        window: flow-control window of the client; may be negative (section 6.9.2).
        num_pending: bytes that wait for flow control.
        num_sent: bytes that had to wait and were sent.
        is_queued: the connection's writer has it among those that may send.
        last: trailers behind the pending messages.
    """

    __slots__ = (
        "_drained",
        "_num_cut",
        "_parts",
        "is_queued",
        "last",
        "num_pending",
        "num_sent",
        "stream_id",
        "window",
    )

    def __init__(self, stream_id: int, window: int) -> None:
        self.stream_id = stream_id
        self.window = window
        self.num_pending = self.num_sent = 0
        self.is_queued = False
        self.last = b""
        # Pending parts, and what was sent of the first.
        self._parts: deque[memoryview] | None = None
        self._num_cut = 0
        # The handler that waits.
        self._drained: asyncio.Future[None] | None = None

    def sent(self) -> None:
        """The last frame of the stream is written."""

    def put(self, message: Message) -> int:
        """Have a message wait; its bytes, which are held until the last one is taken."""
        if self._parts is None:
            self._parts = deque()
        self._parts.append(memoryview(PREFIX.pack(0, len(message))))
        if message:
            self._parts.append(memoryview(message))
        size = PREFIX.size + len(message)
        self.num_pending += size
        return size

    def take(self, size: int, parts: list[bytes | memoryview]) -> int:
        """Move pending bytes to `parts`; how many are no longer held."""
        self.window -= size
        self.num_pending -= size
        self.num_sent += size
        num_freed = 0
        left = size
        waiting = self._parts
        while left and waiting:
            part = waiting.popleft()
            if len(part) > left:
                waiting.appendleft(part[left:])
                part = part[:left]
                # All of it stays in memory until its last byte is taken.
                self._num_cut += left
            else:
                num_freed += self._num_cut + len(part)
                self._num_cut = 0
            parts.append(part)
            left -= len(part)
        if self.num_pending <= _AHEAD_BYTES:
            self._wake()
        return num_freed

    def discard(self) -> int:
        """Discard what is pending; how many bytes are no longer held."""
        num_freed = self.num_pending + self._num_cut
        self._parts = None
        self.num_pending = self._num_cut = 0
        self.last = b""
        self._wake()
        return num_freed

    async def drained(self) -> None:
        """Return once little is pending."""
        while self.num_pending > _AHEAD_BYTES:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _wake(self) -> None:
        waiting = self._drained
        self._drained = None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
