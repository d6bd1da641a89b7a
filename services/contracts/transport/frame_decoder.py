"""Cuts frames out of a byte stream. Pure: the caller reads into the buffers this lends."""

from collections.abc import Iterator

from services.contracts.transport.frames import HEADER, Frame, Kind, check_header
from services.contracts.transport.large_buffer import LargeBuffer

# A payload of at least this size is received into a buffer of its own and never copied again.
_LARGE_BYTES = 65_536
# Several small frames arrive in one read; any incomplete one fits, header and meta included.
_SHARED_BYTES = 4 * _LARGE_BYTES
# After a large payload another one is likely: what is read of it beside its head is copied.
_HEAD_BYTES = 4096


class FrameDecoder:
    """Takes bytes as they come, however they are split; gives whole frames in order.

    Use: read into `get_buffer()`, then iterate over `advance(number of bytes read)`.

    Attributes:
        max_payload_bytes: a frame that announces more is refused; may be raised between frames.
    """

    def __init__(self, max_payload_bytes: int) -> None:
        """Starts at the beginning of a stream."""
        self.max_payload_bytes = max_payload_bytes
        self._shared = memoryview(bytearray(_SHARED_BYTES))
        self._end = 0
        self._num_lent = _SHARED_BYTES
        self._large: LargeBuffer | None = None
        self._large_head: tuple[Kind, int, bytes] = (Kind.INFER, 0, b"")

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: never empty."""
        if self._large is not None:
            return self._large.room
        return self._shared[self._end : self._end + self._num_lent]

    def advance(self, num_bytes: int) -> Iterator[Frame]:
        """The frames that `num_bytes` more bytes complete.

        Raises:
            InvalidRequestError: the bytes are no frames, or one is too large; the stream is
                then worthless.
        """
        large = self._large
        if large is None:
            self._end += num_bytes
            yield from self._cut()
            return
        large.advance(num_bytes)
        if not large.room:
            self._large = None
            yield Frame(*self._large_head, large.payload)

    def _cut(self) -> Iterator[Frame]:
        """Yields frames that lie whole in the shared buffer, then tidies it."""
        begin = 0
        shared = self._shared
        while self._end - begin >= HEADER.size:
            fields = HEADER.unpack_from(shared, begin)
            kind = check_header(fields, self.max_payload_bytes)
            _, _, meta_size, payload_size, request_id = fields
            body = begin + HEADER.size + meta_size
            if body > self._end:
                break
            meta = bytes(shared[body - meta_size : body])
            if payload_size >= _LARGE_BYTES:
                self._num_lent = _HEAD_BYTES
                taken = min(payload_size, self._end - body)
                self._large_head = (kind, request_id, meta)
                # Moves what has arrived of it into a buffer of its own.
                self._large = LargeBuffer(payload_size, shared[body : body + taken])
                yield from self.advance(0)
                begin = body + taken
                continue
            if body + payload_size > self._end:
                break
            self._num_lent = _SHARED_BYTES
            begin = body + payload_size
            yield Frame(kind, request_id, meta, bytes(shared[body:begin]))
        rest = self._end - begin
        shared[:rest] = shared[begin : self._end]
        self._end = rest
