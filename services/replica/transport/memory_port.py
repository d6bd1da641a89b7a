"""Takes the memory that gateways of this host lend, beside the data socket.

A failure here costs speed alone: requests then come through the data socket, as they do from
other hosts.
"""

import asyncio
import hmac
import logging
import mmap
import os
import socket
from pathlib import Path
from typing import Final

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.frames import NO_TOKEN
from services.contracts.transport.lent_memory import (
    GREETING,
    MAGIC,
    REFUSAL,
    UNIT_BYTES,
    VERSION,
    WELCOME,
    memory_path,
    peers_memory,
)
from services.replica.transport.shared_buffers import SharedBuffers

logger = logging.getLogger(__name__)

_NUM_DESCRIPTORS: Final = 2
_BACKLOG: Final = 128
_PAUSE_S: Final = 0.1


class MemoryPort:
    """Listens from the start on; use within one event loop."""

    def __init__(self, data_path: str, token: bytes, greeting_timeout_s: float) -> None:
        """Listen beside a data socket.

        Args:
            data_path: of that socket.
            token: what gateways must send; NO_TOKEN takes any.
            greeting_timeout_s: how long a peer may take to send what it lends, and to send on a
                data connection that it did.

        Raises:
            OSError: the address cannot be had.
        """
        self._path = Path(memory_path(data_path))
        self._token = token
        self._greeting_timeout_s = greeting_timeout_s
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._path.is_socket():
                # Of a process that was killed; asyncio does the same with the data socket.
                self._path.unlink()
            self._listening.bind(str(self._path))
            # Write permission on the socket is permission to have us map memory.
            self._path.chmod(0o600)
            self._listening.listen(_BACKLOG)
        except OSError:
            self._listening.close()
            raise
        self._listening.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._greeting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._unclaimed: dict[bytes, SharedBuffers] = {}
        self._loop.add_reader(self._listening, self._accept)

    def claim(self, link_id: bytes) -> SharedBuffers | None:
        """What a gateway lent under that id, once; None when that is nothing."""
        return self._unclaimed.pop(link_id, None)

    async def close(self) -> None:
        """Take no more; what was claimed stays as long as it is looked at.

        A second call does nothing.
        """
        if self._listening.fileno() < 0:
            return
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for peer in list(self._greeting):
            self._let_go(peer)
        self._unclaimed.clear()
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _accept(self) -> None:
        try:
            peer, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptors are left for the moment: a waiting peer would wake us at once again.
            logger.warning("memory connection lost before it began: %s", error)
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_PAUSE_S, self._go_on)
            return
        peer.setblocking(False)
        self._greeting[peer] = self._loop.call_later(self._greeting_timeout_s, self._let_go, peer)
        # Not by asyncio's own reads, which lose descriptors.
        self._loop.add_reader(peer, self._greet, peer)

    def _go_on(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _greet(self, peer: socket.socket) -> None:
        self._forget(peer)
        try:
            link_id, arena, ledger = self._taken(peer)
        except (OSError, InvalidRequestError) as error:
            logger.warning("memory port: a peer was refused: %s", error)
            _send(peer, REFUSAL + str(error).encode())
            peer.close()
        else:
            _send(peer, WELCOME)
            self._unclaimed[link_id] = SharedBuffers(peer.detach(), arena, ledger)
            self._loop.call_later(self._greeting_timeout_s, self._expire, link_id)

    def _expire(self, link_id: bytes) -> None:
        """No data connection claimed it in time."""
        self._unclaimed.pop(link_id, None)

    def _forget(self, peer: socket.socket) -> None:
        self._loop.remove_reader(peer)
        self._greeting.pop(peer).cancel()

    def _let_go(self, peer: socket.socket) -> None:
        self._forget(peer)
        peer.close()

    def _taken(self, peer: socket.socket) -> tuple[bytes, mmap.mmap, mmap.mmap]:
        """What the peer lends; raises InvalidRequestError for anything but a gateway's offer."""
        greeting, descriptors, _, _ = socket.recv_fds(peer, GREETING.size, _NUM_DESCRIPTORS)
        try:
            if len(greeting) != GREETING.size or len(descriptors) != _NUM_DESCRIPTORS:
                raise InvalidRequestError(
                    f"a greeting of {len(greeting)} bytes and {len(descriptors)} descriptors; "
                    f"wanted {GREETING.size} and {_NUM_DESCRIPTORS}"
                )
            magic, version, token, link_id = GREETING.unpack(greeting)
            if (magic, version) != (MAGIC, VERSION):
                raise InvalidRequestError(
                    f"a greeting of {magic!r} {version}, wanted {MAGIC!r} {VERSION}; run gateway "
                    "and replica of one release"
                )
            if self._token != NO_TOKEN and not hmac.compare_digest(self._token, token):
                raise InvalidRequestError("the peer does not send the token of this replica")
            arena = peers_memory(descriptors[0], is_writable=False)
            ledger = peers_memory(descriptors[1], is_writable=True)
            if len(ledger) * UNIT_BYTES != len(arena):
                raise InvalidRequestError(
                    f"memory of {len(arena)} bytes with a ledger of {len(ledger)}; wanted a byte "
                    f"for each {UNIT_BYTES}"
                )
            return link_id, arena, ledger
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _send(peer: socket.socket, data: bytes) -> None:
    try:
        peer.send(data)
    except OSError as error:
        logger.debug("the peer did not wait for the answer: %s", error)
