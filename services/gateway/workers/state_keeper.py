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
from services.gateway.workers.change_channel import Change, ChangeChannel
from services.gateway.workers.common_state import CHANGING, FOLLOWED, CommonState

logger = logging.getLogger(__name__)

# Beyond any pause of a worker that is well.
APPLY_TIMEOUT_S: Final = 20.0


class WorkerLink(ChangeChannel):
    """The keeper's channel to one worker process.

    Attributes:
        kill: ends the worker, should it not make a change.
    """

    def __init__(
        self, answer: Callable[["WorkerLink", Change], Awaitable[bytes]], what: str
    ) -> None:
        """Nothing is open yet.

        Args:
            answer: gives the answer to what the worker asks by this link.
            what: name of the worker in the log.
        """
        super().__init__(partial(answer, self))
        self.kill: Callable[[], None] = lambda: None
        self._what = what

    async def apply(self, change: Change) -> None:
        """Return once the worker made a change, or sees what was changed of the fleet.

        It is ended when it does not make a change, or does not answer; one that goes meanwhile
        knows all when it comes again.

        Raises:
            SmeltError: it does not see in time what was changed of the fleet.
        """
        is_followed = change.name in FOLLOWED
        try:
            async with asyncio.timeout(APPLY_TIMEOUT_S + is_followed * FOLLOW_TIMEOUT_S):
                await self.ask(change)
        except (OSError, SmeltError) as error:
            if is_followed and isinstance(error, SmeltError):
                raise
            # One that has gone lacks nothing that the others have.
            if not self.is_gone:
                logger.error(
                    "%s did not apply a state change; restarting it: %r", self._what, error
                )
                self.kill()
            self.close()


class StateKeeper:
    """Holds the common state and the channels to all workers; for one event loop."""

    def __init__(self, state: CommonState) -> None:
        self._state = state
        # One change after the other, so that all workers have them in one order.
        self._turn = asyncio.Lock()
        # To workers that know all that was changed, and take part in what follows.
        self._restored: set[WorkerLink] = set()

    async def link(self, what: str) -> tuple[WorkerLink, socket.socket]:
        """A channel for a new worker process, and the end that it inherits."""
        own, theirs = socket.socketpair()
        link = WorkerLink(self._answer, what)
        await link.open(own)
        return link, theirs

    def close(self) -> None:
        """Let go of all workers and of the state."""
        for link in self._restored:
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
                await asyncio.gather(*(each.apply(made) for each in self._restored))
            return answer
        # What the asking one sees the others are to see; changes go on meanwhile.
        await asyncio.gather(*(each.apply(change) for each in self._restored - {link}))
        return b""

    async def _restore(self, link: WorkerLink) -> None:
        async with self._turn:
            for change in self._state.changes():
                await link.apply(change)
            self._restored = {each for each in (*self._restored, link) if not each.is_gone}
