"""The gateway's end of a replica's look at the arena."""

import asyncio
import logging
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from services.contracts.errors import ConnectionLostError, SmeltError
from services.contracts.transport.lent_memory import (
    GREETING,
    LINK_ID_BYTES,
    MAGIC,
    REFUSAL,
    UNIT_BYTES,
    VERSION,
    WELCOME,
    memory_path,
    sealed_memory,
)
from services.gateway.upstream.arena import RequestArena, Slot

logger = logging.getLogger(__name__)

_MAX_REASON_BYTES: Final = 4096
# A replica that swaps its engine may hold its loop for many seconds.
_LEND_TIMEOUT_S: Final = 20.0
# Process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")


class ArenaLink(asyncio.Protocol):
    """One replica that was given the arena; made by `lend_arena`.

    Attributes:
        link_id: by which the replica knows it.
        num_units: of the arena that were sent to it and not released.
    """

    def __init__(self, arena: RequestArena, ledger: mmap.mmap, link_id: bytes) -> None:
        """Nothing is connected yet.

        Args:
            arena: memory whose slots are lent.
            ledger: one byte for each unit of the arena, which both ends map: 1 while the replica
                may read there.
            link_id: by which the replica knows the connection.
        """
        self.link_id = link_id
        self.num_units = 0
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The opener may have given up before it failed.
        self.welcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._arena = arena
        self._mapping = ledger
        self._ledger = memoryview(ledger)
        self._received = b""
        self._is_over = False
        self._transport: asyncio.BaseTransport | None = None

    def lend(self, slot: Slot) -> bool:
        """Let the replica look at a slot; False when it cannot, or still does from before."""
        block = slot.block
        if self._is_over or block is None or self._ledger[block.unit]:
            return False
        if self.num_units > self._arena.max_lent_units:
            # An engine that hangs keeps its slots, and the others need some too.
            return False
        self._ledger[block.unit] = 1
        block.lent_to(self)
        return True

    def holds(self, unit: int) -> bool:
        """Whether the replica may still look at the slot that begins there."""
        return not self._is_over and bool(self._ledger[unit])

    def close(self) -> None:
        """Disconnect the replica: before any slot was sent to it, or with the arena."""
        if self._transport is not None:
            self._transport.close()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Reads whether the replica accepts it."""
        self._received = (self._received + data)[:_MAX_REASON_BYTES]
        if self._received == WELCOME and not self.welcome.done():
            self._arena.lend_to(self)
            self.welcome.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - all end the same
        """The replica reads nothing any more: it has released all, or its process has ended."""
        self._is_over = True
        # At once: it has a descriptor, and garbage is collected late in a process that serves.
        self._ledger.release()
        self._mapping.close()
        self._arena.consumers.discard(self)
        if not self.welcome.done():
            why = self._received.removeprefix(REFUSAL).decode(errors="replace")
            self.welcome.set_exception(
                ConnectionLostError(why or "it closed the connection", may_have_run=False)
            )


async def lend_arena(
    arena: RequestArena,
    data_path: str,
    token: bytes,
    announce: Callable[[ArenaLink], Awaitable[None]],
) -> None:
    """Lend the arena to a replica; where that cannot be, requests are copied to it.

    Args:
        arena: what is lent.
        data_path: of the replica's data socket.
        token: of the replica.
        announce: names the link to the replica on the data connection; raises SmeltError.
    """
    link = None
    try:
        async with asyncio.timeout(_LEND_TIMEOUT_S):
            link = await _open_link(arena, data_path, token)
            await announce(link)
    except (OSError, SmeltError) as error:
        if link is not None:
            link.close()
        logger.info("large requests are copied to the replica at %s: %r", data_path, error)
    except asyncio.CancelledError:
        if link is not None:
            link.close()
        raise


async def _open_link(arena: RequestArena, data_path: str, token: bytes) -> ArenaLink:
    """Give the arena to the replica whose data socket has that path.

    Raises:
        OSError: no memory port listens there, or the kernel has none for the ledger.
        ConnectionLostError: the replica refuses it, with a reason.
    """
    link_id = secrets.token_bytes(LINK_ID_BYTES)
    descriptor, ledger = sealed_memory(
        "smelt-ledger", arena.num_bytes // UNIT_BYTES, is_ours_to_write=False
    )
    try:
        peer = await _greeted(data_path, token, link_id, (arena.descriptor, descriptor))
    except BaseException:
        ledger.close()
        raise
    finally:
        os.close(descriptor)
    link = ArenaLink(arena, ledger, link_id)
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=peer)
        await link.welcome
    except BaseException:
        link.close()
        raise
    return link


async def _greeted(
    data_path: str, token: bytes, link_id: bytes, descriptors: tuple[int, int]
) -> socket.socket:
    """A socket on which the greeting and both descriptors were sent."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, memory_path(data_path))
        _require_own_user(peer)
        greeting = GREETING.pack(MAGIC, VERSION, token, link_id)
        # Nothing was written before, so all of it fits into the socket's buffer.
        socket.send_fds(peer, [greeting], descriptors)
    except BaseException:
        peer.close()
        raise
    return peer


def _require_own_user(peer: socket.socket) -> None:
    """Refuse a peer of another user: in a folder that others may write to, one may be there first.

    Raises:
        ConnectionLostError: it is one, and would get the token and every client's requests.
    """
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    if user != os.geteuid():
        raise ConnectionLostError(
            f"memory is taken there by user {user}, not by our own", may_have_run=False
        )
