"""A listening socket whose connections begin with a TLS handshake that counts as one of them.

An event loop's own server keeps handshakes to itself: clients that do not end theirs would hold any
number of open files.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

# Of `listen`: clients may connect all at once, as after a restart.
BACKLOG: Final = 1024
# Accepted before other connections are served; and after a failure, as of too many open files.
_AT_ONCE: Final = 64
_PAUSE_S: Final = 1.0


class TlsListener:
    """Accepts connections until it is closed; use within one event loop.

    Attributes:
        handshakes: those that have not ended.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[socket.socket], Awaitable[object]],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """Listen.

        Args:
            listening: bound; closed with this.
            connect: makes a connection of what was accepted; has a deadline of its own.
            has_room: whether one more may begin; others are closed.
        """
        self._listening = listening
        self._connect = connect
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self.handshakes: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Accept no more; handshakes that have begun may end. A second call does nothing."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    async def wait_closed(self) -> None:
        """For uvicorn, which calls it of a server; there is nothing to wait for."""

    def _listen(self) -> None:
        # Closed during a pause.
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                taken, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("connection lost before it began: %s", error)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_PAUSE_S, self._listen)
                return
            if not self._has_room():
                taken.close()
                continue
            taken.setblocking(False)
            task = self._loop.create_task(self._handshake(taken))
            self.handshakes.add(task)
            task.add_done_callback(self.handshakes.discard)

    async def _handshake(self, taken: socket.socket) -> None:
        try:
            await self._connect(taken)
        except OSError as error:
            # The client's fault, as in an event loop's own server; the loop has closed it.
            logger.debug("a TLS handshake failed: %s", error)
