"""Writes answers, as far as a client's windows and the connection allow."""

import asyncio
import struct
from collections import deque
from collections.abc import Iterable
from typing import Final

import grpc

from services.grpc_server.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    UINT32,
    ErrorCode,
    Http2ConnectionError,
    frame,
    frame_head,
)
from services.grpc_server.limits import DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, MAX_WINDOW
from services.grpc_server.messages import PREFIX, Message
from services.grpc_server.request_headers import ENCODINGS
from services.grpc_server.response_headers import (
    NO_TABLE,
    Metadata,
    response_block,
    trailers_block,
)

# Handed to the transport at once, before it is asked whether it still takes more.
_GATHER_BYTES: Final = 1 << 20
# A handler of a stream waits while so much of its answers is not sent.
_AHEAD_BYTES: Final = 256 << 10
# Frames without data are not held back; so many bytes of them unread are an attack. Far more than
# what is written of data before the transport says that it is enough.
_MAX_UNREAD_BYTES: Final = 8 << 20
# Below this, copying parts together is cheaper than handing them to the kernel apart.
_JOIN_BYTES: Final = 65_536

_ACCEPTED: Final = (("grpc-accept-encoding", ",".join(ENCODINGS)),)
_ANSWER: Final = response_block()
_OK: Final = trailers_block(grpc.StatusCode.OK)
# Frames of an answer up to the number of its stream, which is all that differs.
_ANSWER_HEAD: Final = frame_head(HEADERS, END_HEADERS, 0, len(_ANSWER))[:5]
_OK_HEAD: Final = frame_head(HEADERS, END_HEADERS | END_STREAM, 0, len(_OK))[:5]
# The head of a frame of data, and that of the message in it.
_DATA_HEAD: Final = struct.Struct("!BHBBIBI")


class SendStream:
    """The way out of one stream.

    Attributes:
        stream_id: of the stream.
        window: bytes that the client takes on it; below 0 after it took some back.
        num_pending: bytes that wait for a window.
        num_sent: bytes that had to wait and were sent.
    """

    __slots__ = ("drained", "is_queued", "last", "num_pending", "num_sent", "parts", "stream_id",
                 "window")  # fmt: skip

    def __init__(self, stream_id: int, window: int) -> None:
        self.stream_id, self.window = stream_id, window
        self.num_pending = self.num_sent = 0
        self.is_queued = False
        # What follows is the writer's: parts that wait, the block that ends the stream, and
        # whoever waits until less is pending.
        self.parts: deque[memoryview] | None = None
        self.last = b""
        self.drained: asyncio.Future[None] | None = None

    def sent(self) -> None:
        """Called once, when the stream's last frame is written."""


class FrameWriter:
    """One connection's. Frames that carry no data are not held back by any window."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Writes to `transport`; nothing is sent yet.

        Attributes:
            initial_window: of a new stream, as the client wants it.
            max_frame_bytes: the largest that it takes.
            num_sent: bytes of answers as yet.
            is_unread: the connection was ended because its client reads nothing.
        """
        self.num_sent, self.is_unread = 0, False
        self.initial_window, self.max_frame_bytes = DEFAULT_WINDOW, DEFAULT_FRAME_BYTES
        self._transport = transport
        self._window = DEFAULT_WINDOW
        self._ready: deque[SendStream] = deque()
        self._is_paused = self._is_closed = False
        # In front of each block of header fields.
        self._of_table = b""
        # Said once on a connection, with its first answer: clients remember it.
        self._first_metadata: Metadata = _ACCEPTED
        # Frames of this turn of the event loop, which leave together at its end: a system call
        # for each, and one of the client's to read it, would cost more than the frame.
        self._unsent: list[bytes | memoryview] = []
        self._num_unsent = 0
        self._will_flush = False
        self._loop = asyncio.get_running_loop()

    def control(self, frames: bytes) -> None:
        """Write frames that no window holds back, at the end of this turn of the loop."""
        self._unsent.append(frames)
        self._num_unsent += len(frames)
        if self._num_unsent > _JOIN_BYTES:
            self.flush()
        elif not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what waits for the end of the turn; into the void once the connection is closed."""
        parts, size = self._unsent, self._num_unsent
        self._unsent, self._num_unsent, self._will_flush = [], 0, False
        transport = self._transport
        if not parts or self._is_closed:
            return
        if size <= _JOIN_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if self._is_paused and transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            # Whoever reads nothing of what it asks for would not read a reason either.
            self._is_closed = self.is_unread = True
            transport.abort()

    def close(self) -> None:
        """Write what waits, and nothing more."""
        self.flush()
        self.connection_lost()

    def connection_lost(self) -> None:
        """Write nothing more: the connection is gone."""
        self._is_closed = True

    def answer(self, stream: SendStream, message: Message) -> None:
        """Send the one message of a call that went well, and end it."""
        size = len(message) + PREFIX.size
        most = min(self._window, stream.window, self.max_frame_bytes, _JOIN_BYTES)
        is_held = self._is_paused or self._is_closed or bool(self._ready)
        if size > most or is_held or self._of_table:
            self.begin(stream)
            self.add(stream, message)
            self.finish(stream, _OK)
            return
        self._window -= size
        self.num_sent += size
        stream_id = stream.stream_id
        packed = UINT32.pack(stream_id)
        head = _DATA_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream_id, 0, len(message))
        if self._first_metadata:
            self.begin(stream)
            self.control(b"".join((head, message, _OK_HEAD, packed, _OK)))
        else:
            self.control(
                b"".join((_ANSWER_HEAD, packed, _ANSWER, head, message, _OK_HEAD, packed, _OK))
            )
        stream.sent()

    def begin(self, stream: SendStream, metadata: Metadata = ()) -> None:
        """Send what stands before an answer's messages."""
        if metadata or self._first_metadata:
            block = response_block((*self._first_metadata, *metadata))
            self._first_metadata = ()
        else:
            block = _ANSWER
        self.control(self._header_frame(0, stream.stream_id, block))

    def add(self, stream: SendStream, message: Message) -> None:
        """Send one message of an answer that has begun, when windows allow."""
        if stream.parts is None:
            stream.parts = deque()
        stream.parts.append(memoryview(PREFIX.pack(0, len(message))))
        if message:
            stream.parts.append(memoryview(message))
        stream.num_pending += PREFIX.size + len(message)
        self._queue(stream)
        self._pump()

    def finish(self, stream: SendStream, block: bytes) -> None:
        """End an answer with these trailers, behind what is pending of it."""
        if stream.num_pending:
            stream.last = block
        else:
            self.send_trailers(stream.stream_id, block)
            stream.sent()

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """Send header fields that end a stream."""
        self.control(self._header_frame(END_STREAM, stream_id, block))

    async def drained(self, stream: SendStream) -> None:
        """Return once little of an answer is pending."""
        while stream.num_pending > _AHEAD_BYTES:
            stream.drained = asyncio.get_running_loop().create_future()
            await stream.drained

    def discard(self, stream: SendStream) -> None:
        """Forget what is pending of an answer."""
        stream.parts, stream.num_pending, stream.last = None, 0, b""
        _wake(stream)

    # ---- what the client grants

    def grow(self, num_bytes: int) -> None:
        """WINDOW_UPDATE of the connection; raises Http2ConnectionError above 2**31 - 1."""
        self._window += num_bytes
        if self._window > MAX_WINDOW:
            raise Http2ConnectionError(
                ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows"
            )
        self._pump()

    def grow_stream(self, stream: SendStream, num_bytes: int) -> bool:
        """It takes more of a stream; False beyond what can be counted."""
        stream.window += num_bytes
        if stream.window > MAX_WINDOW:
            return False
        if stream.num_pending:
            self._queue(stream)
            self._pump()
        return True

    def disable_dynamic_table(self) -> None:
        """It keeps a smaller table of header fields than the usual one, and wants to hear of it."""
        self._of_table = NO_TABLE

    def set_initial_window(self, initial_window: int, streams: Iterable[SendStream]) -> None:
        """It wants windows of another size, of open streams too; raises as `grow`."""
        more = initial_window - self.initial_window
        self.initial_window = initial_window
        for stream in streams:
            if not self.grow_stream(stream, more):
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR, "a stream's window overflows"
                )

    # ---- what the transport takes

    def pause(self) -> None:
        """It takes no more data for now."""
        self._is_paused = True

    def resume(self) -> None:
        """It does again."""
        self._is_paused = False
        self._pump()

    def _queue(self, stream: SendStream) -> None:
        if not stream.is_queued:
            stream.is_queued = True
            self._ready.append(stream)

    def _pump(self) -> None:
        """Send a frame of each stream in turn, so that none waits for another's large answer."""
        while self._ready and self._window > 0 and not (self._is_paused or self._is_closed):
            parts: list[bytes | memoryview] = []
            ended: list[SendStream] = []
            num_bytes = 0
            while self._ready and self._window > 0 and num_bytes < _GATHER_BYTES:
                stream = self._ready.popleft()
                stream.is_queued = False
                num_bytes += self._gather(stream, parts)
                if stream.num_pending:
                    if stream.window > 0:
                        self._queue(stream)
                elif stream.last:
                    parts.append(self._header_frame(END_STREAM, stream.stream_id, stream.last))
                    stream.last = b""
                    ended.append(stream)
            self._unsent += parts
            self._num_unsent += sum(map(len, parts))
            # At once: whether the transport takes more is known afterwards.
            self.flush()
            for stream in ended:
                stream.sent()

    def _header_frame(self, flags: int, stream_id: int, block: bytes) -> bytes:
        return frame(HEADERS, END_HEADERS | flags, stream_id, self._of_table + block)

    def _gather(self, stream: SendStream, parts: list[bytes | memoryview]) -> int:
        """Add one frame of a stream, as large as may be; its bytes of data."""
        size = min(stream.num_pending, stream.window, self._window, self.max_frame_bytes)
        if size <= 0:
            return 0
        parts.append(frame_head(DATA, 0, stream.stream_id, size))
        stream.window -= size
        self._window -= size
        self.num_sent += size
        stream.num_pending -= size
        stream.num_sent += size
        left, waiting = size, stream.parts
        while left and waiting:
            part = waiting.popleft()
            if len(part) > left:
                waiting.appendleft(part[left:])
                part = part[:left]
            parts.append(part)
            left -= len(part)
        if stream.num_pending <= _AHEAD_BYTES:
            _wake(stream)
        return size


def _wake(stream: SendStream) -> None:
    waiting, stream.drained = stream.drained, None
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
