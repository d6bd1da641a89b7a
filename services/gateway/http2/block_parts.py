"""Header blocks as they come: whole, padded, or in several frames."""

from services.gateway.http2.frames import (
    HAS_PRIORITY,
    PADDED,
    ConnectionFault,
    ErrorCode,
    broken,
)
from services.gateway.http2.limits import HEADER_BLOCK_BYTES, MAX_CONTINUATIONS

_PRIORITY_BYTES = 5


class BlockParts:
    """A header block that has not come wholly.

    Attributes:
        stream_id, is_last: of the frame that began it.
    """

    def __init__(self, stream_id: int, *, is_last: bool, first: bytes) -> None:
        self.stream_id, self.is_last = stream_id, is_last
        self._parts, self._num_bytes = [first], len(first)

    def add(self, part: bytes) -> None:
        """One part more; raises ConnectionFault for a block that does not end."""
        self._parts.append(part)
        self._num_bytes += len(part)
        if self._num_bytes > HEADER_BLOCK_BYTES or len(self._parts) > MAX_CONTINUATIONS + 1:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block without an end")

    def joined(self) -> bytes:
        """The block."""
        return b"".join(self._parts)


def unpadded(flags: int, payload: bytes) -> bytes:
    """What HEADERS hold, without what may stand around it; raises ConnectionFault."""
    begin = padding = 0
    if flags & PADDED:
        padding, begin = payload[0] if payload else 0, 1
    if flags & HAS_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin + padding > len(payload):
        raise broken("more padding than frame")
    return payload[begin : len(payload) - padding]
