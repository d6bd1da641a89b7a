"""Brings each change that a client makes to all workers, in one order.

A worker that a client asks for a change asks here; `common_state.py` makes it, all workers make
it too, and only then the client has its answer. So a client that has its answer finds the new
state, whichever worker the next connection leads to. A worker that starts is sent the present
state before it serves. One that does not make a change is ended, and comes again with that state.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from services.contracts.errors import SmeltError
from services.gateway.access.caller import CALLER_NAME
from services.gateway.workers.common_state import CHANGING, FOLLOWED, Change, CommonState
from services.gateway.workers.packets import (
    Packet,
    PacketKind,
    PacketSocket,
    close_file,
    error_from_packet,
    refusal_packet,
    socket_pair,
)

logger = logging.getLogger(__name__)

# Beyond any pause of a worker that is well.
APPLY_TIMEOUT_S: Final = 20.0


class WorkerLink:
    """The keeper's channel to one worker process.

    Attributes:
        is_restored: the worker knows all that was changed, and takes part in what follows.
    """

    def __init__(
        self, end: socket.socket, on_packet: Callable[["WorkerLink", Packet], None], what: str
    ) -> None:
        """Begin to listen.

        Args:
            end: of a pair of sockets, whose other end the worker has.
            on_packet: is called with this link and each packet.
            what: name of the worker in the log.
        """
        self.is_restored = False
        self._what = what
        self._numbers = itertools.count(1)
        self._applied: dict[int, asyncio.Future[None]] = {}
        self._on_packet = on_packet
        self._kill: Callable[[], None] = lambda: None
        self._packets = PacketSocket(end, self._received, self._closed)

    @property
    def is_open(self) -> bool:
        """Whether the worker is there, as far as is known."""
        return self._packets.is_open

    def on_refusal(self, kill: Callable[[], None]) -> None:
        """Take how to end the worker, should it not make a change."""
        self._kill = kill

    async def apply(self, change: Change) -> None:
        """Have the worker make a change; it is ended when it does not."""
        try:
            async with asyncio.timeout(APPLY_TIMEOUT_S):
                await self._done(change)
        except (OSError, SmeltError) as error:
            if self._packets.is_open:
                logger.error(
                    "%s made no change by %s and is started again: %r",
                    self._what,
                    change.name,
                    error,
                )
                self._kill()
            self.close()

    async def follow(self, change: Change) -> None:
        """Return once the worker sees what was changed of the fleet.

        One that goes meanwhile knows the fleet when it comes again.

        Raises:
            SmeltError: it does not see that in time.
        """
        with suppress(OSError):
            await self._done(change)

    async def _done(self, change: Change) -> None:
        number = next(self._numbers)
        applied = self._applied[number] = asyncio.get_running_loop().create_future()
        name = change.name.encode()
        caller = change.caller.encode()
        try:
            self._packets.send(
                Packet(PacketKind.APPLY, number, name, change.body, change.fd, caller)
            )
            await applied
        finally:
            del self._applied[number]

    def send(self, packet: Packet) -> None:
        """Send what needs no answer; a worker that cannot take it is ended."""
        if not self.is_open:
            return  # it has gone, and its supervisor knows
        try:
            self._packets.send(packet)
        except (OSError, SmeltError) as error:
            logger.error("%s cannot be sent changes: %r", self._what, error)
            self._kill()
            self.close()

    def close(self) -> None:
        """Stop reading from it."""
        self._packets.close()

    def _received(self, packet: Packet) -> None:
        close_file(packet)  # workers send none
        applied = self._applied.get(packet.number)
        if packet.kind in (PacketKind.DONE, PacketKind.REFUSED):
            if applied is None or applied.done():
                return
            if packet.kind is PacketKind.DONE:
                applied.set_result(None)
            else:
                applied.set_exception(error_from_packet(packet))
        else:
            self._on_packet(self, packet)

    def _closed(self) -> None:
        self.is_restored = False
        for applied in self._applied.values():
            if not applied.done():
                applied.set_exception(ConnectionResetError("the worker has gone"))


class StateKeeper:
    """Holds the common state and the channels to all workers; for one event loop."""

    def __init__(self, state: CommonState) -> None:
        self._state = state
        # One change after the other, so that all workers have them in one order.
        self._turn = asyncio.Lock()
        self._links: set[WorkerLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def link(self, what: str) -> tuple[WorkerLink, socket.socket]:
        """A channel for a new worker process, and the end that it inherits."""
        own, theirs = socket_pair()
        link = WorkerLink(own, self._received, what)
        self._links = {each for each in self._links if each.is_open} | {link}
        return link, theirs

    def close(self) -> None:
        """Let go of all workers and of the state."""
        for task in self._tasks:
            task.cancel()
        for link in self._links:
            link.close()
        self._state.close()

    def _received(self, link: WorkerLink, packet: Packet) -> None:
        if packet.kind is PacketKind.READY_FOR_STATE:
            work = self._restore(link)
        elif packet.kind is PacketKind.ASK and packet.name.decode() in CHANGING:
            work = self._change(link, packet)
        elif packet.kind is PacketKind.ASK and packet.name.decode() in FOLLOWED:
            work = self._follow(link, packet)
        else:
            logger.error("a worker sent %s, which is not for this end", packet.kind.name)
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _restore(self, link: WorkerLink) -> None:
        async with self._turn:
            for change in self._state.changes():
                await link.apply(change)
            if link.is_open:
                link.is_restored = True
                link.send(Packet(PacketKind.RESTORED))

    async def _change(self, link: WorkerLink, packet: Packet) -> None:
        CALLER_NAME.set(packet.caller.decode())  # of this task alone
        async with self._turn:
            try:
                answer, change = await self._state.change(packet.name.decode(), packet.body)
            except Exception as error:
                # Whatever it was, a client waits for an answer.
                link.send(refusal_packet(packet.number, _public_error(error)))
                return
            await asyncio.gather(*(each.apply(change) for each in self._links if each.is_restored))
            link.send(Packet(PacketKind.DONE, packet.number, body=answer))

    async def _follow(self, link: WorkerLink, packet: Packet) -> None:
        """Answer once the other workers see what the asking one sees; changes go on meanwhile."""
        change = Change(packet.name.decode(), packet.body)
        others = [each for each in self._links if each.is_restored and each is not link]
        try:
            await asyncio.gather(*(each.follow(change) for each in others))
        except Exception as error:
            # As above.
            link.send(refusal_packet(packet.number, _public_error(error)))
        else:
            link.send(Packet(PacketKind.DONE, packet.number))


def _public_error(error: Exception) -> SmeltError:
    """The error as clients see it; details are in the log alone."""
    if isinstance(error, SmeltError):
        return error
    logger.error("a change failed without a reason of ours", exc_info=error)
    return SmeltError("the gateway failed; its log says why")
