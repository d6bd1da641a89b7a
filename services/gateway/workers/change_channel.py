"""The channel between a worker and the process above it: changes, and the answers to them.

Frames, as between gateway and replica, over a pair of sockets; here both ends ask and answer. A
worker that is busy reads late: what the socket does not take at once waits in this process. All
changes are small, and as many as clients wait for, of whom each worker asks for MAX_ASKED at a time
(`keeper_link.py`).
"""

import asyncio
import itertools
import logging
import pickle
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.transport.frame_protocol import FrameProtocol
from services.contracts.transport.frames import (
    CONNECTION_ID,
    Frame,
    Kind,
    decode_error,
    encode_error,
)
from services.contracts.transport.peer_process import open_peers_file

logger = logging.getLogger(__name__)

# Each waits in memory for every worker that is late to read it.
MAX_CHANGE_BYTES: Final = 65_536


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


class ChangeChannel(FrameProtocol):
    """One end, which asks and answers."""

    def __init__(self, answer: Callable[[Change], Awaitable[bytes]]) -> None:
        """Nothing is open yet.

        Args:
            answer: gives the answer to a change, in a task of its own; what it raises is sent as
                a refusal.
        """
        super().__init__()
        self._answer = answer
        self._numbers = itertools.count(CONNECTION_ID + 1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_gone(self) -> bool:
        """Whether there is no other end any more, as far as is known."""
        return self._transport is None or self._transport.is_closing()

    async def open(self, end: socket.socket) -> None:
        """Take over one of a pair of sockets; raises OSError."""
        await self._loop.create_unix_connection(lambda: self, sock=end)

    async def ask(self, change: Change) -> bytes:
        """Send a change, and wait for the answer.

        Raises:
            InvalidRequestError: it is too long.
            OSError: there is no other end any more.
            SmeltError: as the other end refused.
        """
        data = pickle.dumps(change)
        if len(data) > MAX_CHANGE_BYTES:
            raise InvalidRequestError(
                f"a change of {len(data)} bytes: at most {MAX_CHANGE_BYTES} bytes reach all workers"
            )
        if self.is_gone:
            raise _closed()
        number = next(self._numbers)
        asked: asyncio.Future[bytes] = self._loop.create_future()
        self._asked[number] = asked
        try:
            self.send(Kind.CHANGE, number, b"", data)
            return await asked
        finally:
            del self._asked[number]

    def open_file(self, change: Change, flags: int) -> int:
        """A descriptor of our own for the file of a change that came; raises OSError."""
        assert self._transport is not None
        return open_peers_file(self._transport.get_extra_info("socket"), change.fd, flags)

    # ---- what FrameProtocol calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends HELLO."""
        super().connection_made(transport)
        self.send_hello()

    def frame_received(self, frame: Frame) -> None:
        """Answers a change, or wakes what an answer is for."""
        if frame.kind is Kind.CHANGE:
            change = pickle.loads(frame.payload)  # noqa: S301 - of a process of the same program
            task = self._loop.create_task(self._reply(frame.request_id, change))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        asked = self._asked.get(frame.request_id)
        if asked is None or asked.done():
            return  # what asked has given up
        if frame.kind is Kind.ERROR:
            asked.set_exception(decode_error(frame))
        else:
            asked.set_result(bytes(frame.payload))

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the other end ended
        """Fails everything that waits."""
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(_closed())

    async def _reply(self, number: int, change: Change) -> None:
        try:
            self.send(Kind.OK, number, b"", await self._answer(change))
        except SmeltError as error:
            self.send(Kind.ERROR, number, *encode_error(error))
        except Exception:
            # Whatever it was, a client waits for an answer; details are in the log alone.
            logger.exception("a change failed: unexpected error")
            failure = SmeltError("internal error; see the gateway's log")
            self.send(Kind.ERROR, number, *encode_error(failure))


def _closed() -> ConnectionResetError:
    return ConnectionResetError("the peer process closed the channel")
