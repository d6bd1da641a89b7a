"""Length-prefixed frames: asyncio streams, Protocol and BufferedProtocol.

A frame is 12 bytes of header, payload size (uint32) and correlation id (uint64), then the
payload. An address that begins with "/" is a unix socket, any other is host:port.
"""

import asyncio
import itertools
import struct
from collections.abc import Callable
from functools import partial

from .payloads import Handler

HEADER = struct.Struct("!IQ")
_SMALL_BYTES = 65536
# A server that nobody holds is collected, and stops.
_SERVERS: list[asyncio.Server] = []
FrameSink = Callable[[int, bytes | bytearray], None]


async def _listen(factory: Callable[[], asyncio.BaseProtocol], address: str) -> None:
    loop = asyncio.get_running_loop()
    if address.startswith("/"):
        _SERVERS.append(await loop.create_unix_server(factory, address))
        return
    host, port = address.rsplit(":", 1)
    _SERVERS.append(await loop.create_server(factory, host, int(port)))


async def _dial(factory: Callable[[], asyncio.BaseProtocol], address: str) -> None:
    loop = asyncio.get_running_loop()
    if address.startswith("/"):
        await loop.create_unix_connection(factory, address)
        return
    host, port = address.rsplit(":", 1)
    await loop.create_connection(factory, host, int(port))


class _Peer:
    """What both protocols share: a transport, and a sink for whole frames."""

    transport: asyncio.Transport

    def __init__(self, sink: Callable[["_Peer", int, bytes | bytearray], None]) -> None:
        self._sink = partial(sink, self)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keeps the transport."""
        self.transport = transport

    def send(self, number: int, payload: bytes) -> None:
        """Writes header and payload; small ones are joined, as a copy is cheaper than a call."""
        header = HEADER.pack(len(payload), number)
        if len(payload) < _SMALL_BYTES:
            self.transport.write(header + payload)
        else:
            self.transport.writelines((header, payload))


class FramePeer(_Peer, asyncio.Protocol):
    """asyncio.Protocol: the loop allocates each chunk, chunks are joined into frames."""

    def __init__(self, sink: Callable[[_Peer, int, bytes | bytearray], None]) -> None:
        super().__init__(sink)
        self._rest = bytearray()

    def data_received(self, data: bytes) -> None:
        """Cuts whole frames out of what has arrived."""
        rest = self._rest
        rest += data
        start = 0
        while len(rest) - start >= HEADER.size:
            size, number = HEADER.unpack_from(rest, start)
            end = start + HEADER.size + size
            if len(rest) < end:
                break
            with memoryview(rest) as view:
                payload = bytes(view[start + HEADER.size : end])
            self._sink(number, payload)
            start = end
        del rest[:start]


class BufferedFramePeer(_Peer, asyncio.BufferedProtocol):
    """asyncio.BufferedProtocol: a large payload is received into its own buffer."""

    def __init__(self, sink: Callable[[_Peer, int, bytes | bytearray], None]) -> None:
        super().__init__(sink)
        self._small = memoryview(bytearray(4 * _SMALL_BYTES))
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_number = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of the large payload under way, or of the shared small buffer."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return self._small[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Hands over the large payload when whole; else cuts frames."""
        if self._large is None:
            self._filled += nbytes
            self._cut()
            return
        self._large_filled += nbytes
        if self._large_filled == len(self._large):
            payload, self._large = self._large, None
            self._sink(self._large_number, payload)

    def _cut(self) -> None:
        start, small = 0, self._small
        while self._filled - start >= HEADER.size:
            size, number = HEADER.unpack_from(small, start)
            body = start + HEADER.size
            if body + size > self._filled:
                if size < _SMALL_BYTES:
                    break
                self._begin_large(number, size, small[body : self._filled])
                self._filled = 0
                return
            self._sink(number, bytes(small[body : body + size]))
            start = body + size
        if start:
            rest = self._filled - start
            small[:rest] = small[start : self._filled]
            self._filled = rest

    def _begin_large(self, number: int, size: int, head: memoryview) -> None:
        self._large, self._large_number = bytearray(size), number
        self._large[: len(head)] = head
        self._large_filled = len(head)


async def serve(peer: type[_Peer], handler: Handler, address: str) -> None:
    """Serves frames through the given protocol class."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(connection: _Peer, number: int, payload: bytes | bytearray) -> None:
        connection.send(number, await handler(payload))

    def sink(connection: _Peer, number: int, payload: bytes | bytearray) -> None:
        task = asyncio.get_running_loop().create_task(one(connection, number, payload))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await _listen(lambda: peer(sink), address)  # type: ignore[arg-type,return-value]


class FrameLink:
    """One connection; answers are matched by correlation id."""

    def __init__(self, peer: type[_Peer]) -> None:
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.peer = peer(self._sink)
        self._ids = itertools.count()

    def _sink(self, connection: _Peer, number: int, payload: bytes | bytearray) -> None:
        self.waiting.pop(number).set_result(bytes(payload))

    async def call(self, request: bytes) -> bytes:
        """Forwards the request's bytes in one frame."""
        number = next(self._ids)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.peer.send(number, request)
        return await future


async def connect(peer: type[_Peer], address: str) -> FrameLink:
    """Opens the connection."""
    link = FrameLink(peer)
    await _dial(lambda: link.peer, address)  # type: ignore[arg-type,return-value]
    return link
