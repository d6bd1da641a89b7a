"""The channel between a worker and the process above it: changes, and the answers to them.

A pair of sockets that keep packets apart. A worker that is busy reads late, and a socket takes few
packets: what it does not take at once is sent when it does. All packets are small, and as many as
clients wait for, of whom each worker asks for MAX_ASKED at a time (`keeper_link.py`).
"""

import asyncio
import itertools
import logging
import pickle
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.transport.frames import (
    CONNECTION_ID,
    Frame,
    Kind,
    decode_error,
    encode_error,
)
from services.contracts.transport.peer_process import open_peers_file

logger = logging.getLogger(__name__)

# As much as a socket that is empty takes.
MAX_PACKET_BYTES: Final = 65_536


class Change(NamedTuple):
    """What a client changes of a gateway; of a worker that starts, all that was changed before.

    Attributes:
        name: of the RPC; "" of a worker that starts.
        body: its request.
        caller: name of the caller that asked for it.
        fd: of the sender, a file that belongs to it; -1 for none.
    """

    name: str = ""
    body: bytes = b""
    caller: str = ""
    fd: int = -1


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ChangeChannel:
    """One end, which asks and answers; use within one event loop."""

    def __init__(self, end: socket.socket, answer: Callable[[Change], Awaitable[bytes]]) -> None:
        """Take over a socket, and answer from the loop.

        Args:
            end: of a pair of sockets; closed with this.
            answer: gives the answer to a change, in a task of its own; what it raises is sent as
                a refusal.
        """
        end.setblocking(False)
        self._end = end
        self._answer = answer
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._unsent: deque[bytes] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._receive)

    @property
    def is_open(self) -> bool:
        """Whether the other end is there, as far as is known."""
        return self._end.fileno() >= 0

    async def ask(self, change: Change) -> bytes:
        """Send a change, and wait for the answer.

        Raises:
            InvalidRequestError: it is too long.
            OSError: there is no other end any more.
            SmeltError: as the other end refused.
        """
        number = next(self._numbers)
        asked: asyncio.Future[bytes] = self._loop.create_future()
        self._asked[number] = asked
        try:
            self._send(number, change)
            return await asked
        finally:
            del self._asked[number]

    def open_file(self, change: Change, flags: int) -> int:
        """A descriptor of our own for the file of a change that came; raises OSError."""
        return open_peers_file(self._end, change.fd, flags)

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        if self.is_open:
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ConnectionResetError("the peer process closed the channel"))

    def _send(self, number: int, content: Change | bytes | SmeltError) -> None:
        sent = encode_error(content) if isinstance(content, SmeltError) else content
        data = pickle.dumps((number, sent))
        if len(data) > MAX_PACKET_BYTES:
            raise InvalidRequestError(
                f"a change of {len(data)} bytes: at most {MAX_PACKET_BYTES} bytes reach all workers"
            )
        if not self.is_open:
            raise ConnectionResetError("the peer process closed the channel")
        self._unsent.append(data)
        if len(self._unsent) == 1:
            self._send_unsent()

    def _send_unsent(self) -> None:
        """Send what the socket takes, and the rest once it takes more."""
        try:
            while self._unsent:
                self._end.send(self._unsent[0])
                self._unsent.popleft()
            self._loop.remove_writer(self._end.fileno())
        except BlockingIOError:
            self._loop.add_writer(self._end.fileno(), self._send_unsent)
        except OSError:
            self.close()

    def _receive(self) -> None:
        try:
            data = self._end.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        number, content = pickle.loads(data)  # noqa: S301 - of a process of the same program
        if isinstance(content, Change):
            task = self._loop.create_task(self._reply(number, content))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        asked = self._asked.get(number)
        if asked is None or asked.done():
            return  # what asked has given up
        if isinstance(content, bytes):
            asked.set_result(content)
        else:
            asked.set_exception(decode_error(Frame(Kind.ERROR, CONNECTION_ID, *content)))

    async def _reply(self, number: int, change: Change) -> None:
        reply: bytes | SmeltError
        try:
            reply = await self._answer(change)
        except SmeltError as error:
            reply = error
        except Exception:
            # Whatever it was, a client waits for an answer; details are in the log alone.
            logger.exception("a change failed: unexpected error")
            reply = SmeltError("internal error; see the gateway's log")
        with suppress(OSError):
            self._send(number, reply)
