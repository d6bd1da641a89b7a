"""The gateway's end of a replica's look at the arena."""

import logging
import mmap
import os
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from services.contracts.errors import SmeltError
from services.contracts.transport.lent_memory import DESCRIPTORS, LENT, UNIT_BYTES, sealed_memory
from services.contracts.transport.peer_process import peer_process
from services.gateway.upstream.arena import RequestArena, Slot

logger = logging.getLogger(__name__)


class ArenaLink:
    """One replica that reads the arena; made by `lend_arena`.

    Attributes:
        num_units: of the arena that were sent to it and not released.
    """

    def __init__(self, arena: RequestArena, ledger: mmap.mmap, pidfd: int) -> None:
        """The replica has both in its memory.

        Args:
            arena: memory whose slots are lent.
            ledger: one byte for each unit of the arena, which both ends map: LENT while the replica
                may read there.
            pidfd: of the replica's process; closed with this.
        """
        self.num_units = 0
        self._arena = arena
        self._ledger = ledger
        self._pidfd = pidfd
        self._is_open = True
        arena.lend_to(self)

    def lend(self, slot: Slot) -> bool:
        """Let the replica look at a slot; False when it cannot, or still does from before."""
        block = slot.block
        if not self._is_open or block is None or self._ledger[block.unit]:
            return False
        if self.num_units > self._arena.max_lent_units:
            # An engine that hangs keeps its slots, and the others need some too.
            return False
        self._ledger[block.unit] = LENT
        block.lent_to(self)
        return True

    def holds(self, unit: int) -> bool:
        """Whether the replica may still look at the slot that begins there."""
        # While its connection is open its process runs, and the kernel is not asked.
        return self._ledger[unit] == LENT and (self._is_open or not self._has_ended())

    def close(self) -> None:
        """Lend nothing more: the data connection is lost, or the arena closed."""
        self._is_open = False
        self._arena.consumers.discard(self)

    def _has_ended(self) -> bool:
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return bool(ended.poll(0))

    def __del__(self) -> None:
        os.close(self._pidfd)


async def lend_arena(
    arena: RequestArena, connection: socket.socket, ask: Callable[[bytes], Awaitable[object]]
) -> ArenaLink | None:
    """Lend the arena to a replica; None where that cannot be, and requests are copied to it.

    Args:
        arena: what is lent.
        connection: the data connection, a unix socket.
        ask: sends LEND on it with this payload; raises SmeltError where the replica refuses.
    """
    with ExitStack() as opened:
        try:
            pidfd = os.pidfd_open(peer_process(connection))
            opened.callback(os.close, pidfd)
            descriptor, ledger = sealed_memory(
                "smelt-ledger", arena.num_bytes // UNIT_BYTES, is_ours_to_write=False
            )
            # Not before the answer: its number must not be another file's meanwhile.
            opened.callback(os.close, descriptor)
            await ask(DESCRIPTORS.pack(arena.descriptor, descriptor))
            return ArenaLink(arena, ledger, os.dup(pidfd))
        except (OSError, SmeltError) as error:
            logger.info("large requests are copied to a replica of this host: %r", error)
            return None
