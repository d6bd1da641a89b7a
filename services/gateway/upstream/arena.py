"""Slots for large requests, in memory that replicas of this host can read.

A slot is free again when nothing in this process refers to its bytes, and every replica that was
sent its place has released it: see `contracts.transport.lent_memory`. Which code drops the last
reference does not matter, as Python counts them; so a request that was cancelled, retried or thrown
away releases its memory without code of its own.
"""

import logging
import os
from collections import deque
from typing import Final, Protocol, Self

import numpy as np

from services.contracts.transport.frames import Payload
from services.contracts.transport.lent_memory import MAX_SLOT_BYTES, UNIT_BYTES, sealed_memory

logger = logging.getLogger(__name__)

MIN_ARENA_BYTES: Final = MAX_SLOT_BYTES
# The end of a request is aligned for its last tensor, as in `contracts.transport.large_buffer`.
_ALIGNMENT: Final = 64
# Loans that are looked at for each slot that is taken: more than one comes back, on average.
_LOOKS: Final = 4
# And when the arena is full: more would take longer than the copy that they may spare.
_MANY_LOOKS: Final = 128


class Consumer(Protocol):
    """A replica that reads the arena.

    Attributes:
        num_units: of blocks whose place was sent to it, and that it has not released.
    """

    num_units: int

    def holds(self, unit: int) -> bool:
        """Whether it may still look at the slot that begins there."""
        ...

    def close(self) -> None:
        """Lend it nothing more."""
        ...


class Block:
    """A part of the arena.

    Attributes:
        unit: its first.
        num_units: of it.
        consumers: replicas that its place was sent to.
    """

    __slots__ = ("consumers", "num_units", "unit")

    def __init__(self, unit: int, num_units: int) -> None:
        self.unit = unit
        self.num_units = num_units
        self.consumers: tuple[Consumer, ...] = ()

    @property
    def is_lent(self) -> bool:
        """Whether a replica may still look at it."""
        return any(consumer.holds(self.unit) for consumer in self.consumers)

    def lent_to(self, consumer: Consumer) -> None:
        """A replica may look at it now."""
        self.consumers += (consumer,)
        consumer.num_units += self.num_units


class Slot(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The bytes of one request; its end gives the block back.

    Attributes:
        block: what it lies in; None of a view of a slot.
        begin: where it begins in the arena, bytes.
    """

    block: Block | None = None
    begin: int = 0
    _ended: "deque[Block]"

    @classmethod
    def at(cls, block: Block, size: int, arena: memoryview, ended: "deque[Block]") -> Self:
        """A slot in a block, its end aligned for the last tensor of a request.

        Args:
            block: large enough for `size` and the alignment.
            size: bytes.
            arena: the memory that all blocks are of.
            ended: the block is appended to it when the slot is deallocated.
        """
        begin = block.unit * UNIT_BYTES + -size % _ALIGNMENT
        slot = cls((size,), np.uint8, arena, begin)
        slot.block = block
        slot.begin = begin
        slot._ended = ended
        return slot

    def __del__(self) -> None:
        # Anywhere, at any time: the garbage collector may run in the middle of `take`.
        if self.block is not None:
            self._ended.append(self.block)


class RequestArena:
    """Memory for large requests.

    Attributes:
        descriptor: of the memory, for replicas.
        num_bytes: its size.
        max_lent_units: what one replica may hold and still be lent more.
        consumers: replicas that can read it.
    """

    def __init__(self, num_bytes: int) -> None:
        """Take memory, a multiple of MIN_ARENA_BYTES; pages that were never written take none.

        Raises:
            OSError: the kernel gives none that can be shared.
        """
        self.num_bytes = num_bytes // MIN_ARENA_BYTES * MIN_ARENA_BYTES
        self.descriptor, memory = sealed_memory(
            "smelt-requests", self.num_bytes, is_ours_to_write=True
        )
        self.max_lent_units = self.num_bytes // UNIT_BYTES // 2
        self.consumers: set[Consumer] = set()
        self._memory = memoryview(memory)
        # A byte for each unit, 1 while it is taken: a search for zeros finds the first fit.
        self._units = bytearray(self.num_bytes // UNIT_BYTES)
        self._ended: deque[Block] = deque()
        self._lent: deque[Block] = deque()

    @property
    def num_taken_bytes(self) -> int:
        """What requests and loans occupy now."""
        self._settle(len(self._lent))
        return self._units.count(1) * UNIT_BYTES

    def take(self, size: int) -> memoryview | None:
        """Memory for a request of so many bytes; None without use for it, or when full."""
        if not self.consumers or not 0 < size <= MAX_SLOT_BYTES - _ALIGNMENT:
            return None
        free = bytes(-(-(size + _ALIGNMENT - 1) // UNIT_BYTES))
        self._settle(_LOOKS)
        unit = self._units.find(free)
        if unit < 0:
            self._settle(min(len(self._lent), _MANY_LOOKS))
            unit = self._units.find(free)
        if unit < 0:
            return None
        self._units[unit : unit + len(free)] = b"\1" * len(free)
        return Slot.at(Block(unit, len(free)), size, self._memory, self._ended).data

    def lend_to(self, consumer: Consumer) -> None:
        """A replica can read it from now on."""
        if self.descriptor >= 0:
            self.consumers.add(consumer)

    def close(self) -> None:
        """Take no more requests, for good; slots that are in use stay valid."""
        for consumer in tuple(self.consumers):
            consumer.close()
        self.consumers.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _settle(self, num_looks: int) -> None:
        """Free blocks whose slots ended, as far as no replica reads them."""
        ended = self._ended
        lent = self._lent
        while ended:
            block = ended.popleft()
            self._settle_one(block)
        for _ in range(min(num_looks, len(lent))):
            self._settle_one(lent.popleft())

    def _settle_one(self, block: Block) -> None:
        if block.is_lent:
            self._lent.append(block)
            return
        self._units[block.unit : block.unit + block.num_units] = bytes(block.num_units)
        for consumer in block.consumers:
            consumer.num_units -= block.num_units


def request_arena(num_bytes: int) -> RequestArena | None:
    """An arena of about that size; None for none, or where the kernel cannot share memory so."""
    if num_bytes < MIN_ARENA_BYTES:
        if num_bytes:
            logger.warning(
                "large requests are copied to replicas: request_memory_bytes is %d, wanted 0 for "
                "none or at least %d",
                num_bytes,
                MIN_ARENA_BYTES,
            )
        return None
    try:
        return RequestArena(num_bytes)
    except OSError as error:
        logger.warning("large requests are copied to replicas: no memory to share: %s", error)
        return None


def slot_of(payload: Payload) -> Slot | None:
    """The slot that a request fills; None when it lies elsewhere."""
    if not isinstance(payload, memoryview):
        return None
    owner = payload.obj
    return owner if isinstance(owner, Slot) and owner.nbytes == payload.nbytes else None
