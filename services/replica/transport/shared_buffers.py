"""The replica's end of a gateway's arena: requests that are read where they lie."""

import mmap
import os

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.lent_memory import UNIT_BYTES


class SharedBuffers:
    """An arena that this process may read, for as long as anything here refers to it.

    It ends with the last view, and closes the socket then: for the gateway all slots are free
    again.
    """

    def __init__(self, descriptor: int, arena: mmap.mmap, ledger: mmap.mmap) -> None:
        """Take over the connection and the mappings.

        Args:
            descriptor: of the socket that the arena came by; its end returns all slots.
            arena: the gateway's memory, mapped read-only.
            ledger: one byte for each UNIT_BYTES of the arena, which is cleared to return a slot.
        """
        # No socket object: in garbage it may be finalized before this is, and complain.
        self._descriptor = descriptor
        self._arena = arena
        self._ledger = memoryview(ledger)

    def view(self, begin: int, size: int) -> memoryview:
        """The request at that place; the slot goes back when nothing refers to it.

        Raises:
            InvalidRequestError: no slot can be there.
        """
        if not 0 < size <= len(self._arena) - begin:
            raise InvalidRequestError(
                f"data port: a request lies at {begin} and has {size} bytes, in memory of "
                f"{len(self._arena)}"
            )
        view = _View((size,), np.uint8, self._arena, begin)
        view.slots = self
        view.unit = begin // UNIT_BYTES
        return view.data

    def give_back(self, unit: int) -> None:
        """Nothing here refers to the slot that begins there."""
        self._ledger[unit] = 0

    def __del__(self) -> None:
        os.close(self._descriptor)


class _View(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The bytes of one request; its end, in whichever thread, gives the slot back."""

    slots: SharedBuffers | None = None
    unit: int = 0

    def __del__(self) -> None:
        if self.slots is not None:
            self.slots.give_back(self.unit)
