"""The channel between a worker and the process above it: packets, some with an open file.

A pair of sockets that keep packets apart. All packets are small, and their number is bounded by
who waits for an answer, so that nothing is queued here: what the socket does not take at once
is an error of the sender.
"""

import array
import asyncio
import itertools
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from typing import Final, NamedTuple

from services.contracts.errors import InvalidRequestError, OverloadedError, SmeltError
from services.contracts.transport.frames import (
    CONNECTION_ID,
    Frame,
    Kind,
    decode_error,
    encode_error,
)

logger = logging.getLogger(__name__)

# As much as a socket takes at once, whatever else is in it.
MAX_PACKET_BYTES: Final = 65_536
_HEAD: Final = struct.Struct("!BIHH")


class PacketKind(IntEnum):
    """What a packet is for; who sends it stands behind."""

    RESTORE = 1  # worker: what was changed before it started may be sent now
    ASK = 2  # worker: a client wants a change
    APPLY = 3  # above: make a change, which may bring a file
    DONE = 4  # who received one of these: it is done; of ASK, `body` is the client's answer
    REFUSED = 5  # likewise: it is not, and why


class Packet(NamedTuple):
    """One packet.

    Attributes:
        number: of what asks, counted by its sender; an answer has that of what it answers.
        name: of the RPC that makes the change; of REFUSED, the error's class.
        body: a message; of REFUSED, the error's words.
        fd: an open file, whose receiver closes it; -1 for none.
        caller: name of the caller that asked for the change.
    """

    kind: PacketKind
    number: int = 0
    name: bytes = b""
    body: bytes = b""
    fd: int = -1
    caller: bytes = b""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class PacketChannel:
    """One end, which asks and answers; use within one event loop."""

    def __init__(
        self,
        end: socket.socket,
        answer: Callable[[Packet], Awaitable[bytes]],
        on_unsent: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Take over a socket, and answer from the loop.

        Args:
            end: of a pair of sockets; closed with this.
            answer: gives the answer to a packet that asks, in a task of its own; what it raises
                is sent as a refusal.
            on_unsent: is called when an answer could not be sent.
        """
        end.setblocking(False)
        self._end = end
        self._answer = answer
        self._on_unsent = on_unsent
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._receive)

    @property
    def is_open(self) -> bool:
        """Whether the other end is there, as far as is known."""
        return self._end.fileno() >= 0

    async def ask(self, packet: Packet) -> bytes:
        """Send one packet, and wait for the answer; its file stays open here too.

        Raises:
            InvalidRequestError: it is too long.
            OverloadedError: the other end does not keep up.
            OSError: there is no other end any more.
            SmeltError: as the other end refused.
        """
        number = next(self._numbers)
        asked: asyncio.Future[bytes] = self._loop.create_future()
        self._asked[number] = asked
        try:
            self._send(packet._replace(number=number))
            return await asked
        finally:
            del self._asked[number]

    def _send(self, packet: Packet) -> None:
        name = packet.name
        caller = packet.caller
        head = _HEAD.pack(packet.kind, packet.number, len(name), len(caller))
        data = head + name + caller + packet.body
        if len(data) > MAX_PACKET_BYTES:
            raise InvalidRequestError(
                f"a change of {len(data)} bytes: at most {MAX_PACKET_BYTES} bytes reach all workers"
            )
        files = [] if packet.fd < 0 else [packet.fd]
        try:
            socket.send_fds(self._end, [data], files)
        except BlockingIOError as error:
            raise OverloadedError("too many changes are on their way to the workers") from error

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        if self.is_open:
            self._loop.remove_reader(self._end.fileno())
            self._end.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ConnectionResetError("the other end has gone"))

    def _receive(self) -> None:
        try:
            data, files = _received(self._end)
        except BlockingIOError:
            return
        except OSError:
            data = b""
            files = []
        if not data:
            self.close()
            return
        kind, number, name_size, caller_size = _HEAD.unpack_from(data)
        name = data[_HEAD.size :][:name_size]
        rest = data[_HEAD.size + name_size :]
        caller = rest[:caller_size]
        body = rest[caller_size:]
        fd = files[0] if files else -1
        self._take(Packet(PacketKind(kind), number, name, body, fd, caller))

    def _take(self, packet: Packet) -> None:
        if packet.kind not in (PacketKind.DONE, PacketKind.REFUSED):
            task = self._loop.create_task(self._reply(packet))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        asked = self._asked.get(packet.number)
        if asked is None or asked.done():
            return  # who asked has given up
        if packet.kind is PacketKind.DONE:
            asked.set_result(packet.body)
        else:
            asked.set_exception(
                decode_error(Frame(Kind.ERROR, CONNECTION_ID, packet.name, packet.body))
            )

    async def _reply(self, packet: Packet) -> None:
        try:
            reply = Packet(PacketKind.DONE, packet.number, body=await self._answer(packet))
        except Exception as error:
            # Whatever it was, a client waits for an answer.
            close_file(packet)
            reply = Packet(PacketKind.REFUSED, packet.number, *encode_error(_public(error)))
        try:
            self._send(reply)
        except (OSError, SmeltError) as error:
            self._on_unsent(error)


def close_file(packet: Packet) -> None:
    """Let go of a packet's file, if it has one."""
    if packet.fd >= 0:
        with suppress(OSError):
            os.close(packet.fd)


def _public(error: Exception) -> SmeltError:
    """The error as clients see it; details are in the log alone."""
    if isinstance(error, SmeltError):
        return error
    logger.error("a change failed: unexpected error", exc_info=error)
    return SmeltError("the gateway failed; its log says why")


def _received(end: socket.socket) -> tuple[bytes, list[int]]:
    """One packet's bytes, and its files, which no child process inherits."""
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = end.recvmsg(MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    files = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(content[: len(content) - len(content) % files.itemsize])
    return data, list(files)
