"""A worker's end of the channel to the process above it, which keeps what clients change."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from services.contracts.errors import NotReadyError
from services.gateway.access.caller import CALLER_NAME
from services.gateway.api.service import request_class, response_class
from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.gateway.shared_memory.rpcs import REGISTER
from services.gateway.workers.change_channel import Change, ChangeChannel
from services.gateway.workers.common_state import CHANGING, FOLLOWED, is_reading
from services.pb import open_inference_v2_pb2 as pb

logger = logging.getLogger(__name__)

# At a time, of what clients wait for.
MAX_ASKED: Final = 256

UnaryMethod = Callable[[Any], Awaitable[Message]]
Follower = Callable[[Any], Awaitable[None]]


class KeeperLink(ChangeChannel):
    """Sends clients' changes up, and makes those that come down."""

    def __init__(self, fd: int) -> None:
        """Take over the inherited socket; call inside the event loop."""
        super().__init__(self._apply)
        self._methods: Mapping[str, UnaryMethod] = {}
        self._followers: Mapping[str, Follower] = {}
        self._regions = SharedMemoryRegions()
        self._turns = asyncio.Semaphore(MAX_ASKED)
        os.set_inheritable(fd, False)
        self._end = socket.socket(fileno=fd)

    def shared(
        self,
        methods: Mapping[str, UnaryMethod],
        followers: Mapping[str, Follower],
        regions: SharedMemoryRegions,
    ) -> dict[str, UnaryMethod]:
        """The same methods, but changes are made in all workers.

        Args:
            methods: what answers each RPC in this worker alone.
            followers: what waits until this worker sees what an RPC changed of the fleet.
            regions: of this worker.
        """
        self._methods = methods
        self._followers = followers
        self._regions = regions
        asked = dict.fromkeys(CHANGING, self._made_in_all) | dict.fromkeys(
            FOLLOWED, self._seen_by_all
        )
        return {
            name: partial(asked[name], name) if name in asked else method
            for name, method in methods.items()
        }

    async def restore(self) -> None:
        """Come to the state of the other workers.

        Raises:
            NotReadyError: the supervisor process is gone.
        """
        await self.open(self._end)
        await self._ask(Change())

    async def _made_in_all(self, name: str, request: Any) -> Message:
        """The answer to a client.

        Raises:
            SmeltError: as the method alone would, or the supervisor process is gone.
        """
        if is_reading(request):
            return await self._methods[name](request)
        body = await self._ask(_change(name, request))
        answer: Message = response_class(name).FromString(body)
        return answer

    async def _seen_by_all(self, name: str, request: Any) -> Message:
        """The answer to a client, once all workers see what was changed; raises likewise."""
        answer = await self._methods[name](request)
        await self._ask(_change(name, request))
        return answer

    async def _ask(self, change: Change) -> bytes:
        try:
            async with self._turns:
                return await self.ask(change)
        except OSError as error:
            raise NotReadyError(
                "the gateway supervisor exited and this worker shuts down; retry"
            ) from error

    async def _apply(self, change: Change) -> bytes:
        """Make one change; the supervisor waits for the end, so they come one by one."""
        name = change.name
        CALLER_NAME.set(change.caller)  # of this task alone
        request = request_class(name).FromString(change.body)
        if name in self._followers:
            await self._followers[name](request)
        elif name == REGISTER:
            self._adopt(request, change)
        elif name in self._methods:
            await self._methods[name](request)
        # What is off here is off everywhere, and no client can have asked for it.
        return b""

    def _adopt(self, request: pb.SystemSharedMemoryRegisterRequest, change: Change) -> None:
        """Register a region, unless its file cannot be opened here.

        Its owner may take the permission away at any time: a worker that ended for that would
        take all other clients' requests with it, and so would each that is started in its place.
        """
        try:
            file = self.open_file(change, os.O_RDWR)
        except OSError as error:
            logger.warning("region '%s' of a client is not registered: %s", request.name, error)
        else:
            self._regions.adopt(request, file)


def _change(name: str, request: Message) -> Change:
    """What a client asks for."""
    return Change(name, request.SerializeToString(), CALLER_NAME.get())
