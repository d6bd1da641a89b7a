"""Memory for a payload of known size, taken as its bytes come."""

from collections.abc import Callable
from typing import Final

import numpy as np

# Memory beyond this is taken as bytes come: a length alone may announce gigabytes.
FIRST_BYTES: Final = 16 << 20
# What vector units like best; a multiple of every element's size.
_ALIGNMENT: Final = 64

# Memory of so many bytes for a payload, None where it has none to give.
Take = Callable[[int], memoryview | None]


class LargeBuffer:
    """Lends memory to read into, until a payload is whole."""

    __slots__ = ("_memory", "_size", "room")

    def __init__(self, size: int, first: memoryview, take: Take | None = None) -> None:
        """Begin with what has arrived already.

        Args:
            size: bytes of the payload.
            first: what has arrived: at most FIRST_BYTES, and at most `size`.
            take: gives memory for the whole payload; without it, or where it gives None, memory of
                this process grows with what arrives.

        Attributes:
            room: where the next bytes go; empty once the payload is whole.
        """
        self._size = size
        taken = take(size) if take else None
        self._memory = unset_memory(min(size, FIRST_BYTES)) if taken is None else taken
        self._memory[: len(first)] = first
        self.room = self._memory[len(first) :]

    def advance(self, num_bytes: int) -> None:
        """So many bytes were read into `room`."""
        self.room = self.room[num_bytes:]
        if not self.room and len(self._memory) < self._size:
            self._grow()

    @property
    def payload(self) -> memoryview:
        """The whole payload, once `room` is empty."""
        return self._memory

    def _grow(self) -> None:
        """Doubles the memory; a copy, as a reader may still hold the view."""
        have = len(self._memory)
        larger = unset_memory(min(self._size, 2 * have))
        larger[:have] = self._memory
        self._memory = larger
        self.room = larger[have:]


def unset_memory(size: int) -> memoryview:
    """Uninitialised memory: a bytearray's zeros took a third of a large frame's time.

    Its end is aligned, not its beginning: the bytes of a request's only tensor are the last of
    its message, and an engine that finds them aligned needs no copy of its own.
    """
    memory = np.empty(size + _ALIGNMENT - 1, np.uint8)
    begin = -(memory.ctypes.data + size) % _ALIGNMENT
    return memory[begin : begin + size].data
