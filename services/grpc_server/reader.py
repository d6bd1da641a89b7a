"""Cuts frames out of what a connection reads, without copying large messages.

Frames are handed on as they become whole, but those of data in pieces as they come. While a
large message is under way, the connection reads straight into its buffer.

Two things keep one connection from holding up all others: every frame is charged to its
`FloodGuard`, and a connection whose frames took longer than a turn's share of time goes on in the
next turn of the event loop.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from services.contracts.large_buffer import LargeBuffer
from services.grpc_server.flood import FloodGuard
from services.grpc_server.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    STREAM_MASK,
    ErrorCode,
    Http2ConnectionError,
)
from services.grpc_server.limits import FRAME_BYTES, HEADER_BLOCK_BYTES
from services.grpc_server.messages import LARGE_BYTES

# Of one read. Several requests arrive in it.
_READ_BYTES: Final = 4 * HEADER_BLOCK_BYTES
# Of the buffer: any frame but one of data fits that has come in part, and a read more.
_BUFFER_BYTES: Final = _READ_BYTES + 2 * HEADER_BLOCK_BYTES
# How long a connection's frames may take before others have their turn; a request takes a
# hundredth. Reads that follow each other faster than the other time are one turn's: event loops
# read on while a socket fills their buffer.
_TURN_S: Final = 0.002
_UNTIMED_DATA: Final = 15
_SAME_TURN_S: Final = 0.0001
# After a large frame of data another one is likely: what is read of it beside its head is copied.
_HEAD_READ_BYTES: Final = 4096
# With less to come, one read for it and what stands behind it is better than two.
_DIRECT_BYTES: Final = 16_384


class DataSink(Protocol):
    """Where the bytes of a stream go."""

    @property
    def large(self) -> LargeBuffer | None:
        """A buffer that next bytes may be read into."""
        ...

    def feed(self, piece: memoryview) -> None:
        """Some bytes; the memory is used again afterwards."""
        ...

    def filled(self, num_bytes: int) -> None:
        """So many bytes were read into the room of `large`."""
        ...

    def data_ended(self) -> None:
        """The client has sent all that it will."""
        ...


class Receiver(Protocol):
    """What a connection does with frames; any method may raise Http2ConnectionError."""

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A whole frame, of any kind but data."""
        ...

    def data(self, stream_id: int, size: int, *, num_bytes: int, is_last: bool) -> DataSink | None:
        """A frame of data begins; None steps over it.

        Args:
            stream_id: of the stream.
            size: with padding, which counts for the windows.
            num_bytes: without.
            is_last: of the stream.
        """
        ...


def new_read_buffer() -> memoryview:
    """A buffer for all connections of an event loop: each is done with it before the next reads."""
    return np.empty(_BUFFER_BYTES, np.uint8).data


class FrameReader:
    """Use: read into `get_buffer()`, then call `advance` with how much was read."""

    def __init__(
        self,
        receiver: Receiver,
        buffer: memoryview,
        guard: FloodGuard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts where frames start.

        Args:
            receiver: of the frames.
            buffer: from `new_read_buffer`.
            guard: of the connection; each frame is charged to it.
            clock: gives seconds.
        """
        self._receiver, self._shared, self._guard = receiver, buffer, guard
        self._clock = clock
        # What has come of a frame that is not whole, or has to wait for the next turn.
        self._rest = b""
        self._end = 0
        self._num_lent = _READ_BYTES
        # Of this turn: when its last read was done with, and what is left of its time.
        self._done_s = 0.0
        self._left_s = _TURN_S
        # Of the frame of data that is under way.
        self._sink: DataSink | None = None
        self._num_left = self._num_padding = 0
        self._is_last = self._is_inside = False
        self._direct: LargeBuffer | None = None

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: never empty."""
        if self._direct is not None:
            return self._direct.room[: self._num_left]
        begin = self._restore()
        return self._shared[begin : begin + self._num_lent]

    def _restore(self) -> int:
        """Put what is left of former reads in front; its size."""
        size = len(self._rest)
        if size:
            self._shared[:size] = self._rest
        return size

    def release(self) -> None:
        """Drop references to memory: nothing more is read."""
        # At once: connections are cycles, which are collected late in a process that serves.
        self._rest, self._sink, self._direct = b"", None, None

    def stop_filling(self, sink: DataSink) -> None:
        """Read nothing more into the buffer of a sink, which takes nothing any more."""
        # At once: its client may stand still within the frame for as long as it likes.
        if self._sink is sink:
            self._direct = None

    def discard_buffer(self) -> memoryview:
        """Where bytes go that nobody looks at any more."""
        return self._shared

    def advance(self, num_bytes: int) -> bool:
        """Hand on what `num_bytes` more bytes complete; raises Http2ConnectionError.

        Returns:
            False when the connection has had its turn: nothing more may be read before the next
            turn of the event loop, and before `resume` returns True in it.
        """
        now_s = self._clock()
        if now_s - self._done_s > _SAME_TURN_S:
            self._left_s = _TURN_S
        until_s = now_s + self._left_s
        if self._direct is None:
            self._end = len(self._rest) + num_bytes
            self._parse(until_s)
        else:
            self._num_left -= num_bytes
            assert self._sink is not None
            self._sink.filled(num_bytes)
            if not self._num_left:
                self._end = 0
                self._parse(until_s)
        return self._has_time_left(until_s)

    def resume(self) -> bool:
        """Hand on what had to wait for this turn; returns and raises as `advance`."""
        until_s = self._clock() + _TURN_S
        if self._direct is None:
            self._end = self._restore()
            self._parse(until_s)
        return self._has_time_left(until_s)

    def _has_time_left(self, until_s: float) -> bool:
        self._direct = self._direct_buffer()
        self._done_s = self._clock()
        self._left_s = until_s - self._done_s
        return self._left_s > 0

    def _direct_buffer(self) -> LargeBuffer | None:
        sink = self._sink
        if self._num_left < _DIRECT_BYTES or sink is None or sink.large is None:
            return None
        return sink.large if len(sink.large.room) >= _DIRECT_BYTES else None

    def _parse(self, until_s: float) -> None:
        """Hand on what lies in the shared buffer, frame by frame until then; keep the rest."""
        shared, end, begin = self._shared, self._end, 0
        receiver, charge, clock = self._receiver, self._guard.charge, self._clock
        num_frames = 0
        while True:
            if self._is_inside:
                begin = self._take_data(begin)
                if self._is_inside:
                    break
            if end - begin < HEAD_BYTES:
                break
            # Asking for the time takes a while itself, and frames of data do little.
            if not num_frames & _UNTIMED_DATA and clock() > until_s:
                break
            high, low, kind, flags, stream_id = HEAD.unpack_from(shared, begin)
            size, stream_id = high << 16 | low, stream_id & STREAM_MASK
            if kind == DATA:
                num_frames += 1
                after = self._begin_data(begin + HEAD_BYTES, size, flags, stream_id)
                if after < 0:
                    break
                begin = after
                continue
            after = begin + HEAD_BYTES + size
            if size > HEADER_BLOCK_BYTES:
                charge()
                self._begin_skipping(kind, size, stream_id)
                begin += HEAD_BYTES
                continue
            if after > end:
                break
            charge()
            receiver.frame(kind, flags, stream_id, bytes(shared[begin + HEAD_BYTES : after]))
            num_frames = _UNTIMED_DATA + 1
            begin = after
        self._rest = bytes(shared[begin:end])

    def _begin_data(self, body: int, size: int, flags: int, stream_id: int) -> int:
        """Where the frame's bytes begin; -1 when the size of its padding has yet to come."""
        _check_size(size)
        padding = 0
        if flags & PADDED:
            if size and body == self._end:
                return -1
            padding = self._shared[body] + 1 if size else 1
            if padding > size:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
            body += 1
        self._guard.charge()
        self._num_lent = _HEAD_READ_BYTES if size >= LARGE_BYTES else _READ_BYTES
        self._is_last = bool(flags & END_STREAM)
        self._sink = self._receiver.data(
            stream_id, size, num_bytes=size - padding, is_last=self._is_last
        )
        self._num_left = size - padding
        self._num_padding = max(padding - 1, 0)
        self._is_inside = True
        return body

    def _begin_skipping(self, kind: int, size: int, stream_id: int) -> None:
        """Step over a frame that is larger than any that means something."""
        _check_size(size)
        if kind in (HEADERS, CONTINUATION):
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"header block of {size} bytes")
        if kind <= CONTINUATION:
            raise Http2ConnectionError(
                ErrorCode.FRAME_SIZE_ERROR, f"frame of kind {kind} of {size} bytes"
            )
        self._receiver.frame(kind, 0, stream_id, b"")
        self._num_left, self._sink = size, None
        self._is_inside, self._is_last = True, False

    def _take_data(self, begin: int) -> int:
        """Hand on what is there of the frame of data; the position after it."""
        sink = self._sink
        if self._num_left:
            after = min(begin + self._num_left, self._end)
            if sink is not None and after > begin:
                sink.feed(self._shared[begin:after])
            self._num_left -= after - begin
            begin = after
        if not self._num_left:
            after = min(begin + self._num_padding, self._end)
            self._num_padding -= after - begin
            begin = after
            if not self._num_padding:
                self._is_inside, self._sink = False, None
                if self._is_last and sink is not None:
                    sink.data_ended()
        return begin


def _check_size(size: int) -> None:
    """Raises Http2ConnectionError for a frame larger than was announced."""
    if size > FRAME_BYTES:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes: at most {FRAME_BYTES}"
        )
