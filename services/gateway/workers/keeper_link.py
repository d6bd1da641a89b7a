"""A worker's end of the channel to the process above it, which keeps what clients change."""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from google.protobuf.message import Message

from services.contracts.errors import NotReadyError, SmeltError
from services.gateway.access.caller import CALLER_NAME
from services.gateway.api.service import request_class, response_class
from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.gateway.shared_memory.rpcs import follow_change, region_changes
from services.gateway.workers.common_state import CHANGING, FOLLOWED, is_reading
from services.gateway.workers.packets import (
    Packet,
    PacketKind,
    PacketSocket,
    close_file,
    error_from_packet,
    refusal_packet,
)

logger = logging.getLogger(__name__)

UnaryMethod = Callable[[Any], Awaitable[Message]]
Follower = Callable[[Any], Awaitable[None]]


class KeeperLink:
    """Sends clients' changes up, and makes those that come down."""

    def __init__(self, fd: int) -> None:
        """Take over the inherited socket; call inside the event loop."""
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._methods: Mapping[str, UnaryMethod] = {}
        self._followers: Mapping[str, Follower] = {}
        self._regions = SharedMemoryRegions()
        self._restored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # It may never be awaited.
        self._restored.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks: set[asyncio.Task[None]] = set()
        os.set_inheritable(fd, False)
        self._packets = PacketSocket(socket.socket(fileno=fd), self._received, self._closed)

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
        asked = dict.fromkeys(CHANGING, self._answer) | dict.fromkeys(FOLLOWED, self._seen_by_all)
        return {
            name: partial(asked[name], name) if name in asked else method
            for name, method in methods.items()
        }

    async def restore(self) -> None:
        """Come to the state of the other workers.

        Raises:
            NotReadyError: the supervisor process is gone.
        """
        self._send(Packet(PacketKind.READY_FOR_STATE))
        await self._restored

    def close(self) -> None:
        """Stop reading from the supervisor."""
        self._packets.close()

    async def _answer(self, name: str, request: Any) -> Message:
        """The answer to a client.

        Raises:
            SmeltError: as the method alone would, or the supervisor process is gone.
        """
        if is_reading(request):
            return await self._methods[name](request)
        answer: Message = response_class(name).FromString(await self._ask(name, request))
        return answer

    async def _seen_by_all(self, name: str, request: Any) -> Message:
        """The answer to a client, once all workers see what was changed; raises as `_answer`."""
        answer = await self._methods[name](request)
        await self._ask(name, request)
        return answer

    async def _ask(self, name: str, request: Message) -> bytes:
        number = next(self._numbers)
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        try:
            body = request.SerializeToString()
            caller = CALLER_NAME.get().encode()
            self._send(Packet(PacketKind.ASK, number, name.encode(), body, caller=caller))
            return await asked
        finally:
            del self._asked[number]

    def _send(self, packet: Packet) -> None:
        try:
            self._packets.send(packet)
        except OSError as error:
            raise _supervisor_gone() from error

    def _received(self, packet: Packet) -> None:
        match packet.kind:
            case PacketKind.APPLY:
                task = asyncio.get_running_loop().create_task(self._apply(packet))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case PacketKind.RESTORED if not self._restored.done():
                self._restored.set_result(None)
            case PacketKind.DONE | PacketKind.REFUSED:
                self._wake(packet)
            case _:
                logger.error("the process above sent %s, which is not for a worker", packet.kind)

    def _wake(self, packet: Packet) -> None:
        asked = self._asked.get(packet.number)
        if asked is None or asked.done():
            return  # the client has given up
        if packet.kind is PacketKind.DONE:
            asked.set_result(packet.body)
        else:
            asked.set_exception(error_from_packet(packet))

    async def _apply(self, packet: Packet) -> None:
        """Make one change; the supervisor waits for the end, so they come one by one."""
        name = packet.name.decode()
        CALLER_NAME.set(packet.caller.decode())  # of this task alone
        try:
            request = request_class(name).FromString(packet.body)
            if name in self._followers:
                await self._followers[name](request)
            elif name in region_changes(self._regions):
                await follow_change(self._regions, name, request, packet.fd)
            elif name in self._methods:
                await self._methods[name](request)
            # What is off here is off everywhere, and no client can have asked for it.
            reply = Packet(PacketKind.DONE, packet.number)
        except SmeltError as error:
            close_file(packet)
            reply = refusal_packet(packet.number, error)
        with suppress(NotReadyError):  # as this process ends anyway
            self._send(reply)

    def _closed(self) -> None:
        waiters: tuple[asyncio.Future[Any], ...] = (self._restored, *self._asked.values())
        for waiting in waiters:
            if not waiting.done():
                waiting.set_exception(_supervisor_gone())


def _supervisor_gone() -> NotReadyError:
    return NotReadyError(
        "the process that keeps the gateway's workers is gone, and this one ends; ask again"
    )
