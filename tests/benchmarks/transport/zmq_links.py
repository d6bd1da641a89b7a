"""pyzmq: DEALER in the gateway, ROUTER in the replica, over ipc or tcp."""

import asyncio
import itertools
import struct

import zmq
import zmq.asyncio

from .payloads import Handler

_ID = struct.Struct("!Q")


def _endpoint(address: str) -> str:
    return f"ipc://{address}" if address.startswith("/") else f"tcp://{address}"


async def serve(handler: Handler, address: str) -> None:
    """Serves requests of three parts: peer, correlation id, bytes."""
    socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    socket.bind(_endpoint(address))
    tasks: set[asyncio.Task[None]] = set()

    async def one(peer: bytes, number: bytes, request: bytes) -> None:
        await socket.send_multipart([peer, number, await handler(request)])

    async def read() -> None:
        while True:
            task = asyncio.create_task(one(*await socket.recv_multipart()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    tasks.add(asyncio.create_task(read()))  # type: ignore[arg-type]


class ZmqLink:
    """One DEALER socket; answers are matched by correlation id."""

    def __init__(self, address: str) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.connect(_endpoint(address))
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._ids = itertools.count()
        self._reader = asyncio.create_task(self._read())

    async def call(self, request: bytes) -> bytes:
        """Forwards the request's bytes; pyzmq hands large ones over without a copy."""
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_multipart([_ID.pack(number), request], copy=False)
        return await future

    async def _read(self) -> None:
        while True:
            number, reply = await self._socket.recv_multipart()
            self._waiting.pop(_ID.unpack(number)[0]).set_result(reply)


async def connect(address: str) -> ZmqLink:
    """Opens the socket; it connects in the background."""
    return ZmqLink(address)
