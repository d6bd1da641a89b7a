"""The replica's end of a gateway's arena: requests that are read where they lie."""

import mmap
import os
import socket
from typing import Self

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.lent_memory import DESCRIPTORS, LOST, UNIT_BYTES, peers_memory
from services.contracts.transport.peer_process import open_peers_file


class SharedBuffers:
    """An arena that this process may read, for as long as anything here refers to it."""

    def __init__(self, arena: mmap.mmap, ledger: mmap.mmap) -> None:
        """Take over the mappings.

        Args:
            arena: the gateway's memory, mapped read-only.
            ledger: one byte for each UNIT_BYTES of the arena, which is cleared to return a slot.
        """
        self._arena = arena
        self._ledger = memoryview(ledger)

    @classmethod
    def of_peer(cls, connection: socket.socket, lent: bytes) -> Self:
        """What the gateway at the other end of a connection lends; `lent` is LEND's payload.

        Raises:
            InvalidRequestError: no memory that this process may have, or that can be read safely.
        """
        if len(lent) != DESCRIPTORS.size:
            raise InvalidRequestError(
                f"data port: LEND of {len(lent)} bytes, wanted {DESCRIPTORS.size}; run gateway and "
                "replica of one release"
            )
        arena, ledger = DESCRIPTORS.unpack(lent)
        slots = _mapped(connection, arena, is_writable=False)
        records = _mapped(connection, ledger, is_writable=True)
        if len(records) * UNIT_BYTES != len(slots):
            raise InvalidRequestError(
                f"memory of {len(slots)} bytes with a ledger of {len(records)}; wanted a byte for "
                f"each {UNIT_BYTES}"
            )
        return cls(slots, records)

    def view(self, begin: int, size: int) -> memoryview:
        """The request at that place; the slot goes back when nothing refers to it.

        Raises:
            InvalidRequestError: no slot can be there.
        """
        if not 0 < size <= len(self._arena) - begin:
            raise InvalidRequestError(
                f"data port: a request is at {begin} and has {size} bytes, in memory of "
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
        # Views keep this alive, and so does the connection.
        self._ledger[:] = bytes([LOST]) * len(self._ledger)


def _mapped(connection: socket.socket, descriptor: int, *, is_writable: bool) -> mmap.mmap:
    """Memory of the peer's, by the number of its descriptor there."""
    try:
        own = open_peers_file(connection, descriptor, os.O_RDWR if is_writable else os.O_RDONLY)
    except OSError as error:
        raise InvalidRequestError(f"shared memory cannot be opened: {error}") from error
    try:
        return peers_memory(own, is_writable=is_writable)
    finally:
        os.close(own)


class _View(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The bytes of one request; its end, in whichever thread, gives the slot back."""

    slots: SharedBuffers | None = None
    unit: int = 0

    def __del__(self) -> None:
        if self.slots is not None:
            self.slots.give_back(self.unit)
