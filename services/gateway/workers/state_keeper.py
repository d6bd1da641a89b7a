"""Brings each change that a client makes to all workers, in one order.

A worker that a client asks for a change asks here; `common_state.py` makes it, all workers make
it too, and only then the client has its answer. So a client that has its answer finds the new
state, whichever worker the next connection leads to. A worker that starts is sent the present
state before it serves. One that does not make a change is ended, and comes again with that state.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from services.contracts.errors import SmeltError
from services.gateway.access.caller import CALLER_NAME
from services.gateway.api.model_control import FOLLOW_TIMEOUT_S
from services.gateway.workers.change_channel import Change, ChangeChannel, socket_pair
from services.gateway.workers.common_state import CHANGING, CommonState

logger = logging.getLogger(__name__)

# Beyond any pause of a worker that is well.
APPLY_TIMEOUT_S: Final = 20.0


class WorkerLink:
    """The keeper's channel to one worker process.

    Attributes:
        is_restored: the worker knows all that was changed, and takes part in what follows.
    """

    def __init__(
        self,
        end: socket.socket,
        answer: Callable[["WorkerLink", Change], Awaitable[bytes]],
        what: str,
    ) -> None:
        """Begin to listen.

        Args:
            end: of a pair of sockets, whose other end the worker has.
            answer: gives the answer to what the worker asks by this link.
            what: name of the worker in the log.
        """
        self.is_restored = False
        self._what = what
        self._kill: Callable[[], None] = lambda: None
        self._channel = ChangeChannel(end, partial(answer, self))

    @property
    def is_open(self) -> bool:
        """Whether the worker is there, as far as is known."""
        return self._channel.is_open

    def on_refusal(self, kill: Callable[[], None]) -> None:
        """Take how to end the worker, should it not make a change."""
        self._kill = kill

    async def apply(self, change: Change) -> None:
        """Have the worker make a change; it is ended when it does not."""
        try:
            async with asyncio.timeout(APPLY_TIMEOUT_S):
                await self._channel.ask(change)
        except (OSError, SmeltError) as error:
            self._end(error)

    async def follow(self, change: Change) -> None:
        """Return once the worker sees what was changed of the fleet.

        One that goes meanwhile, or is ended as it does not answer, knows the fleet when it comes
        again.

        Raises:
            SmeltError: it does not see that in time.
        """
        try:
            async with asyncio.timeout(FOLLOW_TIMEOUT_S + APPLY_TIMEOUT_S):
                await self._channel.ask(change)
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        """Stop reading from it."""
        self._channel.close()

    def _end(self, error: Exception) -> None:
        """End a worker that does not have the state of the others; one that has gone has none."""
        if self.is_open:
            logger.error("%s did not apply a state change; restarting it: %r", self._what, error)
            self._kill()
        self.close()


class StateKeeper:
    """Holds the common state and the channels to all workers; for one event loop."""

    def __init__(self, state: CommonState) -> None:
        self._state = state
        # One change after the other, so that all workers have them in one order.
        self._turn = asyncio.Lock()
        self._links: set[WorkerLink] = set()

    def link(self, what: str) -> tuple[WorkerLink, socket.socket]:
        """A channel for a new worker process, and the end that it inherits."""
        own, theirs = socket_pair()
        link = WorkerLink(own, self._answer, what)
        self._links = {each for each in self._links if each.is_open} | {link}
        return link, theirs

    def close(self) -> None:
        """Let go of all workers and of the state."""
        for link in self._links:
            link.close()
        self._state.close()

    async def _answer(self, link: WorkerLink, change: Change) -> bytes:
        if not change.name:
            await self._restore(link)
            return b""
        CALLER_NAME.set(change.caller)  # of this task alone
        if change.name in CHANGING:
            async with self._turn:
                answer, made = await self._state.make(change)
                restored = [each for each in self._links if each.is_restored]
                await asyncio.gather(*(each.apply(made) for each in restored))
            return answer
        # What the asking one sees the others are to see; changes go on meanwhile.
        others = [each for each in self._links if each.is_restored and each is not link]
        await asyncio.gather(*(each.follow(change) for each in others))
        return b""

    async def _restore(self, link: WorkerLink) -> None:
        async with self._turn:
            for change in self._state.changes():
                await link.apply(change)
            link.is_restored = link.is_open
