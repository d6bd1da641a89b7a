"""Cuts frames out of a byte stream. Pure: the caller reads into the buffers this lends."""

from collections.abc import Iterator

import numpy as np

from services.contracts.frames import HEADER, Frame, Kind, check_header

# A payload of at least this size is received into a buffer of its own and never copied again.
_LARGE_BYTES = 65_536
# Several small frames arrive in one read; any incomplete one fits, header and meta included.
_SHARED_BYTES = 4 * _LARGE_BYTES
# Memory beyond this is taken as bytes come: a header alone may announce gigabytes. Not less than
# the shared buffer, of which a first piece is moved.
_FIRST_BYTES = 16 << 20
# What vector units like best; a multiple of every element's size.
_ALIGNMENT = 64
_NOTHING = memoryview(b"")


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
        self._large = _NOTHING
        self._large_size = 0
        self._large_view = _NOTHING
        self._large_head: tuple[Kind, int, bytes] | None = None

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: never empty."""
        return self._large_view if self._large_head else self._shared[self._end :]

    def advance(self, num_bytes: int) -> Iterator[Frame]:
        """The frames that `num_bytes` more bytes complete.

        Raises:
            InvalidRequestError: the bytes are no frames, or one is too large; the stream is
                then worthless.
        """
        if self._large_head is None:
            self._end += num_bytes
            yield from self._cut()
            return
        self._large_view = self._large_view[num_bytes:]
        if self._large_view:
            return
        if len(self._large) < self._large_size:
            self._grow()
            return
        head, payload = self._large_head, self._large
        self._large, self._large_head = _NOTHING, None
        yield Frame(*head, payload)

    def _cut(self) -> Iterator[Frame]:
        """Yields frames that lie whole in the shared buffer, then tidies it."""
        begin, shared = 0, self._shared
        while self._end - begin >= HEADER.size:
            fields = HEADER.unpack_from(shared, begin)
            kind = check_header(fields, self.max_payload_bytes)
            _, _, meta_size, payload_size, request_id = fields
            body = begin + HEADER.size + meta_size
            if body > self._end:
                break
            meta = bytes(shared[body - meta_size : body])
            if payload_size >= _LARGE_BYTES:
                taken = min(payload_size, self._end - body)
                self._large_head = (kind, request_id, meta)
                yield from self._begin_large(payload_size, shared[body : body + taken])
                begin = body + taken
                continue
            if body + payload_size > self._end:
                break
            begin = body + payload_size
            yield Frame(kind, request_id, meta, bytes(shared[body:begin]))
        rest = self._end - begin
        shared[:rest] = shared[begin : self._end]
        self._end = rest

    def _begin_large(self, size: int, first: memoryview) -> Iterator[Frame]:
        """Moves what has arrived of a large payload into a buffer of its own."""
        self._large_size = size
        self._large = _unset(min(size, _FIRST_BYTES))
        self._large[: len(first)] = first
        self._large_view = self._large[len(first) :]
        yield from self.advance(0)

    def _grow(self) -> None:
        """Makes room for as much again; a copy, as whoever reads may still hold the view."""
        have = len(self._large)
        larger = _unset(min(self._large_size, 2 * have))
        larger[:have] = self._large
        self._large, self._large_view = larger, larger[have:]


def _unset(size: int) -> memoryview:
    """Memory that nobody filled: a bytearray's zeros took a third of a large frame's time.

    Its end is aligned, not its beginning: the bytes of a request's only tensor are the last of
    its message, and an engine that finds them aligned needs no copy of its own.
    """
    memory = np.empty(size + _ALIGNMENT - 1, np.uint8)
    begin = -(memory.ctypes.data + size) % _ALIGNMENT
    return memory[begin : begin + size].data
