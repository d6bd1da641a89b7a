"""gRPC: the front of every gateway, and the two gRPC transports behind one."""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator

import grpc

from .payloads import Handler

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
_ID = struct.Struct("!Q")
# A server that nobody holds is collected, and stops.
_SERVERS: list[grpc.aio.Server] = []


async def serve_unary(handler: Handler, address: str) -> None:
    """Serves ModelInfer on opaque bytes: the front of a gateway, and a replica's own server."""

    async def infer(request: bytes, context: object) -> bytes:
        return await handler(request)

    await _serve({"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}, address)


async def _serve(methods: dict[str, grpc.RpcMethodHandler], address: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    service = "inference.GRPCInferenceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(address)
    await server.start()
    _SERVERS.append(server)


def channel_to(address: str) -> grpc.aio.Channel:
    """A channel with a connection of its own."""
    return grpc.aio.insecure_channel(address, options=OPTIONS)


class UnaryLink:
    """One unary gRPC call to the replica for each request."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._infer = channel.unary_unary(METHOD)

    async def call(self, request: bytes) -> bytes:
        """Forwards the request's bytes."""
        return await self._infer(request)


async def connect_unary(address: str) -> UnaryLink:
    """Opens a channel."""
    channel = channel_to(address)
    await channel.channel_ready()
    return UnaryLink(channel)


async def serve_stream(handler: Handler, address: str) -> None:
    """Serves one bidirectional stream whose messages begin with a correlation id."""

    async def stream(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        replies: asyncio.Queue[bytes] = asyncio.Queue()
        tasks: set[asyncio.Task[None]] = set()

        async def one(message: bytes) -> None:
            replies.put_nowait(message[: _ID.size] + await handler(message[_ID.size :]))

        async def read() -> None:
            async for message in requests:
                task = asyncio.create_task(one(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        reader = asyncio.create_task(read())
        while not reader.done():
            yield await replies.get()

    await _serve({"ModelInfer": grpc.stream_stream_rpc_method_handler(stream)}, address)


class StreamLink:
    """One long-lived bidirectional stream; answers are matched by correlation id."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._ids = itertools.count()
        self._call = channel.stream_stream(METHOD)()
        # A gRPC call takes one write at a time, so one task writes.
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    async def call(self, request: bytes) -> bytes:
        """Forwards the request's bytes behind an id."""
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait(_ID.pack(number) + request)
        return await future

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._outbox.get())

    async def _read(self) -> None:
        async for message in self._call:
            (number,) = _ID.unpack_from(message)
            self._waiting.pop(number).set_result(message[_ID.size :])


async def connect_stream(address: str) -> StreamLink:
    """Opens the channel and its one stream."""
    channel = channel_to(address)
    await channel.channel_ready()
    return StreamLink(channel)
