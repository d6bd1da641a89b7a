"""Header blocks as they come: whole, padded, or in several frames."""

from collections.abc import Callable

from services.grpc_server.frames import (
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
    ErrorCode,
    Http2ConnectionError,
    broken,
)
from services.grpc_server.limits import HEADER_BLOCK_BYTES, MAX_CONTINUATIONS

_PRIORITY_BYTES = 5


class HeaderFragments:
    """A header block that has not come wholly.

    Attributes:
        stream_id, is_last: of the frame that began it.
    """

    def __init__(self, stream_id: int, *, is_last: bool, first: bytes) -> None:
        self.stream_id, self.is_last = stream_id, is_last
        self._parts, self._num_bytes = [first], len(first)

    def add(self, part: bytes) -> None:
        """One part more; raises Http2ConnectionError for a block that does not end."""
        self._parts.append(part)
        self._num_bytes += len(part)
        if self._num_bytes > HEADER_BLOCK_BYTES or len(self._parts) > MAX_CONTINUATIONS + 1:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block without an end")

    def joined(self) -> bytes:
        """The block."""
        return b"".join(self._parts)


class HeaderFrames:
    """HEADERS and CONTINUATION of one connection."""

    def __init__(self, on_block: Callable[[int, bytes, bool], None]) -> None:
        """`on_block` takes the stream of a whole block, the block, and whether it ends that."""
        self._on_block = on_block
        self._block: HeaderFragments | None = None

    @property
    def stream_id(self) -> int:
        """Of the block of which more has to come; 0 when there is none."""
        return 0 if self._block is None else self._block.stream_id

    def on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A block begins; raises Http2ConnectionError."""
        if not stream_id % 2:
            raise broken(f"HEADERS of stream {stream_id}")
        if flags & (PADDED | HAS_PRIORITY):
            payload = unpadded(flags, payload)
        is_last = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(stream_id, payload, is_last)
        else:
            self._block = HeaderFragments(stream_id, is_last=is_last, first=payload)

    def on_continuation(self, flags: int, _: int, payload: bytes) -> None:
        """A block goes on; raises Http2ConnectionError."""
        block = self._block
        if block is None:
            raise broken("CONTINUATION of nothing")
        block.add(payload)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(block.stream_id, block.joined(), block.is_last)


def unpadded(flags: int, payload: bytes) -> bytes:
    """What HEADERS hold, without what may stand around it; raises Http2ConnectionError."""
    begin = padding = 0
    if flags & PADDED:
        padding, begin = payload[0] if payload else 0, 1
    if flags & HAS_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin + padding > len(payload):
        raise broken("more padding than frame")
    return payload[begin : len(payload) - padding]
