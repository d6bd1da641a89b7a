"""A data server on real sockets, on both event loops, and a raw peer to misbehave with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from services.contracts.transport.frame_decoder import FrameDecoder
from services.contracts.transport.frame_protocol import FrameProtocol
from services.contracts.transport.frames import MAX_PAYLOAD_BYTES, Frame, InferFrame, Payload
from services.gateway.upstream.arena import RequestArena
from services.gateway.upstream.replica_connection import ReplicaConnection, connect
from services.pb import open_inference_v2_pb2 as pb
from services.replica.transport.data_server import DataServer
from tests.integration.data_port.lending import ARENA_BYTES

Handler = Callable[[InferFrame], Awaitable[bytes]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test here runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


async def echo(frame: InferFrame) -> bytes:
    """Answers a request with its own bytes."""
    return bytes(frame.request)


async def no_statistics() -> bytes:
    """The statistics of a replica that has done nothing."""
    return pb.ModelStatistics(name="m", inference_count=3).SerializeToString()


class RawPeer:
    """A peer that writes any bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = FrameDecoder(MAX_PAYLOAD_BYTES)
        self._frames: list[Frame] = []

    @classmethod
    async def dial(cls, address: str) -> "RawPeer":
        """Connects by TCP, or to a unix socket."""
        if address.startswith("unix:"):
            return cls(*await asyncio.open_unix_connection(address.removeprefix("unix:")))
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def read_frame(self) -> Frame | None:
        """The next frame; None when the peer has closed."""
        while not self._frames:
            buffer = self._decoder.get_buffer()
            try:
                data = await self.reader.read(len(buffer))
            except ConnectionResetError:
                return None
            if not data:
                return None
            buffer[: len(data)] = data
            self._frames += self._decoder.advance(len(data))
        return self._frames.pop(0)

    async def close(self) -> None:
        """Hangs up."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


class WatchedTransport:
    """A transport whose writes are counted; with all else that it has."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.num_writes = 0
        self._transport = transport

    def write(self, data: Payload) -> None:
        """Counts as one."""
        self.num_writes += 1
        self._transport.write(data)

    def writelines(self, parts: Iterable[Payload]) -> None:
        """Counts as one, too: it is one system call."""
        self.num_writes += 1
        self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> dict[type[FrameProtocol], WatchedTransport]:
    """The last one that each kind of end was given."""
    found: dict[type[FrameProtocol], WatchedTransport] = {}
    made = FrameProtocol.connection_made

    def watched(self: FrameProtocol, transport: asyncio.Transport) -> None:
        found[type(self)] = WatchedTransport(transport)
        made(self, found[type(self)])  # type: ignore[arg-type] # it is used like one

    monkeypatch.setattr(FrameProtocol, "connection_made", watched)
    return found


class Port:
    """A data server under test and the connections to it; all are closed after the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[DataServer] = []
        self._connections: list[ReplicaConnection] = []
        self._raw_peers: list[RawPeer] = []

    async def serve(
        self, handler: Handler = echo, *, family: str = "tcp", **options: object
    ) -> str:
        """Starts a server and returns its address."""
        server = DataServer(handler, no_statistics, **options)  # type: ignore[arg-type]
        self._servers.append(server)
        path = self._folder / f"{len(self._servers)}.sock"
        return await server.listen("127.0.0.1:0" if family == "tcp" else f"unix:{path}")

    @property
    def server(self) -> DataServer:
        """The last one started."""
        return self._servers[-1]

    async def connect(self, address: str, **options: object) -> ReplicaConnection:
        """Opens a connection as a gateway does."""
        connection = await connect(address, **options)  # type: ignore[arg-type]
        self._connections.append(connection)
        return connection

    async def dial_raw(self, address: str) -> RawPeer:
        """Connects a peer that may misbehave."""
        peer = await RawPeer.dial(address)
        self._raw_peers.append(peer)
        return peer

    async def close(self) -> None:
        """Closes everything that was opened here."""
        for peer in self._raw_peers:
            await peer.close()
        for connection in self._connections:
            connection.close()
        for server in self._servers:
            await server.close()


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    """Serve and connect; closed after the test."""
    port = Port(tmp_path)
    yield port
    await port.close()


@pytest.fixture
def arena() -> Iterator[RequestArena]:
    """Memory of a gateway; small, so that much of it is taken again and again."""
    arena = RequestArena(ARENA_BYTES)
    yield arena
    arena.close()
