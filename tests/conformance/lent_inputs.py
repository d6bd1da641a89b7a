"""A gateway's memory with inputs in it, as a replica sees them: it can only read there."""

import os

import numpy as np

from services.contracts.kserve.tensors import Array
from services.contracts.transport.lent_memory import UNIT_BYTES, peers_memory, sealed_memory
from services.replica.transport.shared_buffers import SharedBuffers

NUM_UNITS = 4


class LentInputs:
    """An arena, its ledger, and the replica's look at both."""

    def __init__(self) -> None:
        arena, self.arena = sealed_memory("a", NUM_UNITS * UNIT_BYTES, is_ours_to_write=True)
        ledger, self.ledger = sealed_memory("l", NUM_UNITS, is_ours_to_write=False)
        their_arena = peers_memory(arena, is_writable=False)
        their_ledger = peers_memory(ledger, is_writable=True)
        self._slots = SharedBuffers(their_arena, their_ledger)
        os.close(arena)
        os.close(ledger)

    def lend(self, inputs: dict[str, Array], offset: int) -> dict[str, Array]:
        """The same inputs in slots, each beginning so many bytes behind an aligned place."""
        lent = {}
        for unit, (name, array) in enumerate(inputs.items()):
            begin = unit * UNIT_BYTES + offset
            self.arena[begin : begin + array.nbytes] = array.tobytes()
            self.ledger[unit] = 1
            view = self._slots.view(begin, array.nbytes)
            lent[name] = np.frombuffer(view, array.dtype).reshape(array.shape)
        return lent

    @property
    def num_looked_at(self) -> int:
        """Slots that something here still refers to."""
        return sum(self.ledger[:])
