"""Cuts frames out of what a connection reads, without copying large messages.

Frames are handed on as they become whole, but those of data in pieces as they come. While a
large message is under way, the connection reads straight into its buffer.
"""

from typing import Final, Protocol

import numpy as np

from services.contracts.large_buffer import LargeBuffer
from services.gateway.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    STREAM_MASK,
    ConnectionFault,
    ErrorCode,
)
from services.gateway.http2.limits import FRAME_BYTES, HEADER_BLOCK_BYTES
from services.gateway.http2.messages import LARGE_BYTES

# Several requests arrive in one read; any frame but one of data fits.
_SHARED_BYTES: Final = 4 * HEADER_BLOCK_BYTES
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
    """What a connection does with frames; any method may raise ConnectionFault."""

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A whole frame, of any kind but data."""
        ...

    def data(self, stream_id: int, size: int, *, is_empty: bool, is_last: bool) -> DataSink | None:
        """A frame of data begins, of so many bytes with its padding; None steps over them."""
        ...


class FrameReader:
    """Use: read into `get_buffer()`, then tell `advance` how much."""

    def __init__(self, receiver: Receiver) -> None:
        """Starts where frames start."""
        self._receiver = receiver
        # Not zeros: pages that nothing was read into cost an idle connection nothing.
        self._shared = np.empty(_SHARED_BYTES, np.uint8).data
        self._end = 0
        self._num_lent = _SHARED_BYTES
        # Of the frame of data that is under way.
        self._sink: DataSink | None = None
        self._num_left = self._num_padding = 0
        self._is_last = self._is_inside = False
        self._direct: LargeBuffer | None = None

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: never empty."""
        if self._direct is not None:
            return self._direct.room[: self._num_left]
        return self._shared[self._end : self._end + self._num_lent]

    def release(self) -> None:
        """Let go of the memory: nothing more is read."""
        # At once: connections are cycles, which are collected late in a process that serves.
        self._shared, self._sink, self._direct = memoryview(b""), None, None

    def let_go(self, sink: DataSink) -> None:
        """Read nothing more into the buffer of a sink, which takes nothing any more."""
        # At once: its client may stand still within the frame for as long as it likes.
        if self._sink is sink:
            self._direct = None

    def waste_buffer(self) -> memoryview:
        """Where bytes go that nobody looks at any more."""
        return self._shared

    def advance(self, num_bytes: int) -> None:
        """Hand on what `num_bytes` more bytes complete; raises ConnectionFault."""
        if self._direct is None:
            self._end += num_bytes
            self._cut()
        else:
            self._num_left -= num_bytes
            assert self._sink is not None
            self._sink.filled(num_bytes)
            if not self._num_left:
                self._cut()
        self._direct = self._direct_buffer()

    def _direct_buffer(self) -> LargeBuffer | None:
        sink = self._sink
        if self._num_left < _DIRECT_BYTES or sink is None or sink.large is None:
            return None
        return sink.large if len(sink.large.room) >= _DIRECT_BYTES else None

    def _cut(self) -> None:
        """Hand on what lies in the shared buffer, then tidy it."""
        shared, end, begin = self._shared, self._end, 0
        receiver = self._receiver
        while True:
            if self._is_inside:
                begin = self._take_data(begin)
                if self._is_inside:
                    break
            if end - begin < HEAD_BYTES:
                break
            high, low, kind, flags, stream_id = HEAD.unpack_from(shared, begin)
            size, stream_id = high << 16 | low, stream_id & STREAM_MASK
            if kind == DATA:
                after = self._begin_data(begin + HEAD_BYTES, size, flags, stream_id)
                if after < 0:
                    break
                begin = after
                continue
            after = begin + HEAD_BYTES + size
            if size > HEADER_BLOCK_BYTES:
                self._begin_skipping(kind, size, stream_id)
                begin += HEAD_BYTES
                continue
            if after > end:
                break
            receiver.frame(kind, flags, stream_id, bytes(shared[begin + HEAD_BYTES : after]))
            begin = after
        rest = end - begin
        shared[:rest] = shared[begin:end]
        self._end = rest

    def _begin_data(self, body: int, size: int, flags: int, stream_id: int) -> int:
        """Where the frame's bytes begin; -1 when the size of its padding has yet to come."""
        _check_size(size)
        padding = 0
        if flags & PADDED:
            if size and body == self._end:
                return -1
            padding = self._shared[body] + 1 if size else 1
            if padding > size:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
            body += 1
        self._num_lent = _HEAD_READ_BYTES if size >= LARGE_BYTES else _SHARED_BYTES
        self._is_last = bool(flags & END_STREAM)
        self._sink = self._receiver.data(
            stream_id, size, is_empty=size == padding, is_last=self._is_last
        )
        self._num_left = size - padding
        self._num_padding = max(padding - 1, 0)
        self._is_inside = True
        return body

    def _begin_skipping(self, kind: int, size: int, stream_id: int) -> None:
        """Step over a frame that is larger than any that means something."""
        _check_size(size)
        if kind in (HEADERS, CONTINUATION):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"header block of {size} bytes")
        if kind <= CONTINUATION:
            raise ConnectionFault(
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
    """Raises ConnectionFault for a frame larger than was announced."""
    if size > FRAME_BYTES:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes: at most {FRAME_BYTES}"
        )
