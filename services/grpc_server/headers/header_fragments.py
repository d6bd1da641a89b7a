"""HEADERS and CONTINUATION frames: padding, priority fields, and blocks of several fragments."""

from collections.abc import Callable
from typing import Final

from services.grpc_server.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
    ErrorCode,
    Http2ConnectionError,
    protocol_error,
)
from services.grpc_server.limits import HEADER_BLOCK_BYTES, MAX_CONTINUATIONS

_PRIORITY_BYTES: Final = 5


class HeaderFragments:
    """Header blocks of one connection, as their fragments come.

    Attributes:
        stream_id: of the block that is not complete; 0 when there is none.
    """

    def __init__(self, on_block: Callable[[int, bytes, bool], None]) -> None:
        """`on_block` takes the stream of a complete block, the block, and END_STREAM."""
        self._on_block = on_block
        self.stream_id = self._num_bytes = 0
        self._fragments: list[bytes] = []
        self._is_last = False

    def on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A block begins; complete ones go on to `on_block`.

        Args:
            flags: of the frame.
            stream_id: of the frame.
            payload: with padding and priority fields, where the flags say so.

        Raises:
            Http2ConnectionError: the stream is a server's, or the padding is longer than the
                payload.
        """
        # Streams of clients are odd (section 5.1.1), and servers open none here.
        if not stream_id % 2:
            raise protocol_error(f"HEADERS of stream {stream_id}")
        if flags & (PADDED | HAS_PRIORITY):
            payload = _unpadded(flags, payload)
        is_last = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(stream_id, payload, is_last)
        else:
            self.stream_id = stream_id
            self._is_last = is_last
            self._fragments = [payload]
            self._num_bytes = len(payload)

    def on_continuation(self, flags: int, _: int, payload: bytes) -> None:
        """A block goes on.

        Args:
            flags: of the frame.
            _: the stream; `Streams` has compared it with that of the block.
            payload: bytes of the block.

        Raises:
            Http2ConnectionError: no block has begun, or it is too long or in too many frames.
        """
        if not self.stream_id:
            raise protocol_error("CONTINUATION without HEADERS before it")
        self._require_room(len(payload))
        self._fragments.append(payload)
        self._num_bytes += len(payload)
        if flags & END_HEADERS:
            stream_id = self.stream_id
            block = b"".join(self._fragments)
            self.stream_id = 0
            self._fragments = []
            self._on_block(stream_id, block, self._is_last)

    def on_head(self, kind: int, num_bytes: int) -> None:
        """Raise Http2ConnectionError where the frame is of a block that it makes too long."""
        if kind == CONTINUATION and self.stream_id:
            self._require_room(num_bytes)

    def _require_room(self, num_bytes: int) -> None:
        size = self._num_bytes + num_bytes
        # Number and sum: CONTINUATION frames may be empty, or a byte each.
        is_long = len(self._fragments) > MAX_CONTINUATIONS
        if is_long or size > HEADER_BLOCK_BYTES:
            raise Http2ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header block of {size} bytes in {len(self._fragments) + 1} frames: at most "
                f"{HEADER_BLOCK_BYTES} bytes and {MAX_CONTINUATIONS} CONTINUATION frames",
            )


def _unpadded(flags: int, payload: bytes) -> bytes:
    """The fragment of HEADERS, without padding and priority; raises Http2ConnectionError."""
    # In the order of section 6.2: Pad Length, priority fields, the fragment, padding.
    begin = padding = 0
    if flags & PADDED:
        padding = payload[0] if payload else 0
        begin = 1
    if flags & HAS_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin + padding > len(payload):
        raise protocol_error("HEADERS have more padding than payload")
    return payload[begin : len(payload) - padding]
