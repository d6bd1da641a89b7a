"""Writes frames: DATA as flow control and the transport allow, all others at once."""

import asyncio
import struct
from collections import deque
from collections.abc import Iterable
from typing import Final

import grpc

from services.grpc_server.headers.request_headers import ENCODINGS
from services.grpc_server.headers.response_headers import (
    NO_TABLE,
    Metadata,
    response_block,
    trailers_block,
)
from services.grpc_server.http2.frames import (
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
from services.grpc_server.http2.send_stream import SendStream
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, MAX_WINDOW
from services.grpc_server.request.messages import PREFIX, Message

# Of one write of DATA, after which the transport may pause writing.
_GATHER_BYTES: Final = 1 << 20
# Control frames are never held back: a client that leaves so many bytes of them unread is ended.
# Far more than DATA before the transport pauses writing.
_MAX_UNREAD_BYTES: Final = 8 << 20
# Below this, joining parts is cheaper than a vectored write.
_JOIN_BYTES: Final = 65_536

_ACCEPTED: Final = (("grpc-accept-encoding", ",".join(ENCODINGS)),)
_ANSWER: Final = response_block()
_OK: Final = trailers_block(grpc.StatusCode.OK)
# Headers of an answer's frames up to the stream identifier, which alone differs.
_ANSWER_HEAD: Final = frame_head(HEADERS, END_HEADERS, 0, len(_ANSWER))[:5]
_OK_HEAD: Final = frame_head(HEADERS, END_HEADERS | END_STREAM, 0, len(_OK))[:5]
# Frame header of DATA, and the prefix of the message in it.
_DATA_HEAD: Final = struct.Struct("!BHBBIBI")


class FrameWriter:
    """One connection's."""

    def __init__(self, transport: asyncio.Transport, unread: UnreadAnswers) -> None:
        """Write to `transport`; what waits is counted in `unread`.

        Attributes:
            initial_window, max_frame_bytes: by the client's SETTINGS.
            num_sent: bytes of DATA that were sent.
            num_unread: bytes of answers that wait, here and in handlers; the account's.
            is_unread: the connection was ended because its client reads too little.
        """
        self.num_sent = self.num_unread = 0
        self._loop = asyncio.get_running_loop()
        # At the last two marks of time.
        self._sent_before = (0, 0)
        # Bytes of messages that are in memory, and what is counted of them.
        self._num_held = self._num_counted = 0
        # Of messages whose last byte the transport has: bytes written by then, and their size.
        self._leaving: deque[tuple[int, int]] = deque()
        self._num_written = 0
        self._unread = unread
        self.is_unread = False
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_bytes = DEFAULT_FRAME_BYTES
        self._transport = transport
        self._window = DEFAULT_WINDOW
        self._ready: deque[SendStream] = deque()
        self._is_paused = self._is_closed = False
        # Dynamic table size update in front of each header block, or nothing.
        self._of_table = b""
        # With the first answer of a connection, which clients remember.
        self._first_metadata: Metadata = _ACCEPTED
        # Frames of this iteration of the event loop, which one write sends at its end: a system
        # call for each, and one of the client to read it, would cost more than the frame.
        self._unsent: list[bytes | memoryview] = []
        self._num_unsent = 0
        self._will_flush = False

    def control(self, frames: bytes) -> None:
        """Write control frames at the end of this iteration of the event loop."""
        self._unsent.append(frames)
        self._num_unsent += len(frames)
        if self._num_unsent > _JOIN_BYTES:
            self.flush()
        elif not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what waits for the end of the iteration; nothing once the connection is closed."""
        parts = self._unsent
        size = self._num_unsent
        self._unsent = []
        self._num_unsent = 0
        self._will_flush = False
        transport = self._transport
        if not parts or self._is_closed:
            return
        self._num_written += size
        if size <= _JOIN_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if self._is_paused and transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.end_unread()

    def close(self) -> None:
        """Write what waits, and nothing afterwards."""
        self.flush()
        self.connection_lost()

    def connection_lost(self) -> None:
        """Write nothing afterwards."""
        self._is_closed = True
        self._unread.forget(self)

    # ---- answers that are not read

    def admits(self, num_bytes: int, stream: SendStream | None = None) -> bool:
        """Whether so many bytes may wait, or need not; see `UnreadAnswers.admits`."""
        is_sent_now = (
            stream is not None
            and not self._is_paused
            and num_bytes + PREFIX.size <= min(self._window, stream.window)
        )
        return is_sent_now or self._is_closed or self._unread.admits(self, num_bytes)

    def hold(self, num_bytes: int) -> None:
        """So many bytes more wait for the client, or fewer."""
        if not self._is_closed:
            self._unread.count(self, num_bytes)

    @property
    def num_sent_lately(self) -> int:
        """Bytes of DATA since the mark before the last one."""
        return self.num_sent - self._sent_before[0]

    def mark_time(self) -> None:
        """A while has passed: see `num_sent_lately`."""
        self._sent_before = (self._sent_before[1], self.num_sent)

    def end_unread(self) -> None:
        """End the connection: a client that does not read would not read GOAWAY either."""
        self.is_unread = True
        self.connection_lost()
        self._transport.abort()

    # ---- answers

    def answer(self, stream: SendStream, message: Message) -> None:
        """Send the message and trailers of a unary call that succeeded."""
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
        """Send the response headers."""
        if metadata or self._first_metadata:
            block = response_block((*self._first_metadata, *metadata))
            self._first_metadata = ()
        else:
            block = _ANSWER
        self.control(self._header_frame(0, stream.stream_id, block))

    def add(self, stream: SendStream, message: Message) -> None:
        """Send a message once flow control allows."""
        self._num_held += stream.put(message)
        self._queue(stream)
        self._pump()

    def finish(self, stream: SendStream, block: bytes) -> None:
        """Send trailers behind the pending messages, which closes the stream."""
        if stream.num_pending:
            stream.last = block
        else:
            self.send_trailers(stream.stream_id, block)
            stream.sent()

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """Send HEADERS with END_STREAM."""
        self.control(self._header_frame(END_STREAM, stream_id, block))

    def discard(self, stream: SendStream) -> None:
        """Discard what is pending of an answer."""
        self._num_held -= stream.discard()
        self.settle()

    # ---- flow control (RFC 9113, section 6.9)

    def grow(self, num_bytes: int) -> None:
        """WINDOW_UPDATE of the connection; raises Http2ConnectionError above 2**31 - 1."""
        self._window += num_bytes
        if self._window > MAX_WINDOW:
            raise Http2ConnectionError(
                ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows"
            )
        self._pump()

    def grow_stream(self, stream: SendStream, num_bytes: int) -> bool:
        """WINDOW_UPDATE of a stream; False above 2**31 - 1."""
        stream.window += num_bytes
        if stream.window > MAX_WINDOW:
            return False
        if stream.num_pending:
            self._queue(stream)
            self._pump()
        return True

    def disable_dynamic_table(self) -> None:
        """Signal a dynamic table of size 0 (RFC 7541, section 4.2)."""
        self._of_table = NO_TABLE

    def set_initial_window(self, initial_window: int, streams: Iterable[SendStream]) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE, of open streams too; raises as `grow`."""
        more = initial_window - self.initial_window
        self.initial_window = initial_window
        for stream in streams:
            if not self.grow_stream(stream, more):
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR, "a stream's window overflows"
                )

    # ---- the transport's write buffer

    def pause(self) -> None:
        """It is full: hold DATA back."""
        self._is_paused = True

    def resume(self) -> None:
        """It has space again."""
        self._is_paused = False
        self._pump()

    def _queue(self, stream: SendStream) -> None:
        if not stream.is_queued:
            stream.is_queued = True
            self._ready.append(stream)

    def _pump(self) -> None:
        """Send a DATA frame of each stream in turn: none waits for another's large answer."""
        while self._ready and self._window > 0 and not (self._is_paused or self._is_closed):
            parts: list[bytes | memoryview] = []
            ended: list[SendStream] = []
            num_before = self.num_sent
            num_freed = 0
            while self._ready and self._window > 0 and self.num_sent - num_before < _GATHER_BYTES:
                stream = self._ready.popleft()
                stream.is_queued = False
                num_freed += self._gather(stream, parts)
                if stream.num_pending:
                    if stream.window > 0:
                        self._queue(stream)
                elif stream.last:
                    parts.append(self._header_frame(END_STREAM, stream.stream_id, stream.last))
                    stream.last = b""
                    ended.append(stream)
            self._unsent += parts
            self._num_unsent += sum(map(len, parts))
            # At once: the transport pauses writing in it where its buffer is full.
            self.flush()
            if num_freed:
                self._leaving.append((self._num_written, num_freed))
            for stream in ended:
                stream.sent()
        self.settle()

    def settle(self) -> None:
        """Count what waits by now: the transport keeps slices of a message, and so all of it."""
        if self._leaving:
            num_left = self._num_written - self._transport.get_write_buffer_size()
            while self._leaving and self._leaving[0][0] <= num_left:
                self._num_held -= self._leaving.popleft()[1]
        more = self._num_held - self._num_counted
        if more:
            self._num_counted = self._num_held
            self.hold(more)

    def _header_frame(self, flags: int, stream_id: int, block: bytes) -> bytes:
        return frame(HEADERS, END_HEADERS | flags, stream_id, self._of_table + block)

    def _gather(self, stream: SendStream, parts: list[bytes | memoryview]) -> int:
        """Add the largest DATA frame of a stream that flow control allows; see `take`."""
        size = min(stream.num_pending, stream.window, self._window, self.max_frame_bytes)
        if size <= 0:
            return 0
        parts.append(frame_head(DATA, 0, stream.stream_id, size))
        self._window -= size
        self.num_sent += size
        return stream.take(size, parts)
