"""Parses frames (RFC 9113, section 4.1), without copying large messages.

Frames are handled once they are complete, DATA in pieces as they come. While a large message is
received, the connection reads straight into its buffer.

Two things keep one connection from delaying all others: every frame is charged to its
`FloodGuard`, and a connection whose frames took longer than a time slice goes on in the next
iteration of the event loop.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from services.contracts.transport.large_buffer import LargeBuffer
from services.grpc_server.http2.flood import FloodGuard
from services.grpc_server.http2.frames import (
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
    protocol_error,
)
from services.grpc_server.limits import FRAME_BYTES, HEADER_BLOCK_BYTES
from services.grpc_server.request.messages import LARGE_BYTES

if TYPE_CHECKING:
    from services.grpc_server.http2.streams import Streams
    from services.grpc_server.request.receive_stream import ReceiveStream

# Of one read, which brings several requests.
_READ_BYTES: Final = 262_144
# Of the buffer: holds an incomplete frame of any kind but DATA, and a read more.
_BUFFER_BYTES: Final = _READ_BYTES + 2 * HEADER_BLOCK_BYTES
# The time slice of a connection; a request takes a hundredth. Reads that follow each other faster
# than the other time share one: event loops read on while a socket fills their buffer.
_SLICE_S: Final = 0.002
_UNTIMED_DATA: Final = 15
_SAME_SLICE_S: Final = 0.0001
# After a large DATA frame another one is likely: bytes read behind its header are copied.
_HEAD_READ_BYTES: Final = 4096
# With less to come, one read for it and the next frame is better than two.
_DIRECT_BYTES: Final = 16_384


def new_read_buffer() -> memoryview:
    """For all connections of an event loop: each has parsed its read before the next one reads."""
    return np.empty(_BUFFER_BYTES, np.uint8).data


class FrameReader:
    """Use: read into `get_buffer()`, then call `advance` with the number of bytes."""

    def __init__(
        self,
        receiver: "Streams",
        buffer: memoryview,
        guard: FloodGuard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins behind the preface.

        Args:
            receiver: of the frames.
            buffer: from `new_read_buffer`.
            guard: of the connection; each frame is charged to it.
            clock: gives seconds.
        """
        self._receiver = receiver
        self._shared = buffer
        self._guard = guard
        self._clock = clock
        # Bytes that are not parsed: an incomplete frame, or frames beyond the time slice.
        self._rest = b""
        self._end = 0
        self._read_bytes = _READ_BYTES
        # Of the time slice: the end of its last read, and what is left of it.
        self._done_s = 0.0
        self._left_s = _SLICE_S
        # Of the DATA frame that is incomplete.
        self._sink: ReceiveStream | None = None
        self._num_left = self._num_padding = 0
        self._is_last = self._is_inside = False
        self._direct: LargeBuffer | None = None

    def get_buffer(self) -> memoryview:
        """Where the next read goes: never empty."""
        if self._direct is not None:
            return self._direct.room[: self._num_left]
        begin = self._restore()
        return self._shared[begin : begin + self._read_bytes]

    def _restore(self) -> int:
        """Put the bytes that are not parsed in front; their number."""
        size = len(self._rest)
        if size:
            self._shared[:size] = self._rest
        return size

    def release(self) -> None:
        """Release memory: nothing more is read."""
        # Connections are reference cycles, which a busy process collects late.
        self._rest = b""
        self._sink = None
        self._direct = None

    def stop_filling(self, sink: "ReceiveStream") -> None:
        """Read nothing more into the buffer of a call that has ended."""
        if self._sink is sink:
            self._direct = None

    def discard_buffer(self) -> memoryview:
        """For bytes that are discarded."""
        return self._shared

    def advance(self, num_bytes: int) -> bool:
        """Handle the frames that `num_bytes` more bytes complete; raises Http2ConnectionError.

        Returns:
            False when the time slice is used: nothing more may be read before `resume`, called in
            the next iteration of the event loop, returns True.
        """
        now_s = self._clock()
        if now_s - self._done_s > _SAME_SLICE_S:
            self._left_s = _SLICE_S
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
        """Go on with a new time slice; returns and raises as `advance`."""
        until_s = self._clock() + _SLICE_S
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
        """Handle the frames in the shared buffer until that time; keep the rest."""
        shared = self._shared
        end = self._end
        begin = 0
        receiver = self._receiver
        charge = self._guard.charge
        clock = self._clock
        num_frames = 0
        while True:
            if self._is_inside:
                begin = self._take_data(begin)
                if self._is_inside:
                    break
            if end - begin < HEAD_BYTES:
                break
            # Reading the clock has a cost itself, and DATA frames are quick.
            if not num_frames & _UNTIMED_DATA and clock() > until_s:
                break
            high, low, kind, flags, stream_id = HEAD.unpack_from(shared, begin)
            size = high << 16 | low
            stream_id = stream_id & STREAM_MASK
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
                receiver.header_fragments.on_head(kind, size)
                break
            charge()
            receiver.frame(kind, flags, stream_id, bytes(shared[begin + HEAD_BYTES : after]))
            num_frames = _UNTIMED_DATA + 1
            begin = after
        self._rest = bytes(shared[begin:end])

    def _begin_data(self, body: int, size: int, flags: int, stream_id: int) -> int:
        """Where the frame's bytes begin; -1 while Pad Length is to come."""
        _check_size(size)
        padding = 0
        if flags & PADDED:
            if size and body == self._end:
                return -1
            padding = self._shared[body] + 1 if size else 1
            if padding > size:
                raise protocol_error("DATA has more padding than payload")
            body += 1
        self._guard.charge()
        self._read_bytes = _HEAD_READ_BYTES if size >= LARGE_BYTES else _READ_BYTES
        self._is_last = bool(flags & END_STREAM)
        self._sink = self._receiver.data(
            stream_id, size, num_bytes=size - padding, is_last=self._is_last
        )
        self._num_left = size - padding
        self._num_padding = max(padding - 1, 0)
        self._is_inside = True
        return body

    def _begin_skipping(self, kind: int, size: int, stream_id: int) -> None:
        """Discard the payload of a frame larger than any that is known, or raise."""
        _check_size(size)
        if kind in (HEADERS, CONTINUATION):
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"header block of {size} bytes")
        if kind <= CONTINUATION:
            raise Http2ConnectionError(
                ErrorCode.FRAME_SIZE_ERROR, f"frame of kind {kind} of {size} bytes"
            )
        self._receiver.frame(kind, 0, stream_id, b"")
        self._num_left = size
        self._sink = None
        self._is_inside = True
        self._is_last = False

    def _take_data(self, begin: int) -> int:
        """Pass on the bytes of the DATA frame that are here; the position after them."""
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
                self._is_inside = False
                self._sink = None
                if self._is_last and sink is not None:
                    sink.data_ended()
        return begin


def _check_size(size: int) -> None:
    """Raise Http2ConnectionError for a frame above SETTINGS_MAX_FRAME_SIZE."""
    if size > FRAME_BYTES:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes: at most {FRAME_BYTES}"
        )
