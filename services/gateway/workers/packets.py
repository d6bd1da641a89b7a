"""The channel between a worker and the process above it: packets, some with an open file.

A pair of sockets that keep packets apart. All packets are small, and their number is bounded by
who waits for an answer, so that nothing is queued here: what the socket does not take at once
is an error of the sender.
"""

import array
import asyncio
import os
import socket
import struct
from collections.abc import Callable
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

# As much as a socket takes at once, whatever else is in it.
MAX_PACKET_BYTES: Final = 65_536
_HEAD: Final = struct.Struct("!BIHH")


class PacketKind(IntEnum):
    """What a packet is for; who sends it stands behind."""

    READY_FOR_STATE = 1  # worker: what was changed before it started may be sent now
    ASK = 2  # worker: a client wants a change
    APPLY = 3  # above: make a change, which may bring a file
    DONE = 4  # both: it is made; of ASK, `body` is the client's answer
    REFUSED = 5  # both: it is not, and why
    RESTORED = 6  # above: that was all that had been changed


class Packet(NamedTuple):
    """One packet.

    Attributes:
        number: of the ASK or APPLY that it is, or answers.
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


def refusal_packet(number: int, error: SmeltError) -> Packet:
    """An error as a packet."""
    return Packet(PacketKind.REFUSED, number, *encode_error(error))


def error_from_packet(packet: Packet) -> SmeltError:
    """The error of a REFUSED packet, in its class."""
    return decode_error(Frame(Kind.ERROR, CONNECTION_ID, packet.name, packet.body))


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class PacketSocket:
    """One end; use within one event loop."""

    def __init__(
        self,
        end: socket.socket,
        on_packet: Callable[[Packet], None],
        on_closed: Callable[[], None],
    ) -> None:
        """Take over a socket and call back from the loop.

        Args:
            end: of a pair of sockets; closed with this.
            on_packet: is called with each packet.
            on_closed: is called once, when the other end is gone.
        """
        end.setblocking(False)
        self._end = end
        self._on_packet = on_packet
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._receive)

    @property
    def is_open(self) -> bool:
        """Whether the other end is there, as far as is known."""
        return self._end.fileno() >= 0

    def send(self, packet: Packet) -> None:
        """Send one packet; its file stays open here too.

        Raises:
            InvalidRequestError: it is too long.
            OverloadedError: the other end does not keep up.
            OSError: there is no other end any more.
        """
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
            self._on_closed()

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
        self._on_packet(Packet(PacketKind(kind), number, name, body, fd, caller))


def close_file(packet: Packet) -> None:
    """Let go of a packet's file, if it has one."""
    if packet.fd >= 0:
        with suppress(OSError):
            os.close(packet.fd)


def _received(end: socket.socket) -> tuple[bytes, list[int]]:
    """One packet's bytes, and its files, which no child process inherits."""
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = end.recvmsg(MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    files = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(content[: len(content) - len(content) % files.itemsize])
    return data, list(files)
