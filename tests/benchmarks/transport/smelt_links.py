"""The transport in use: the gateway's ReplicaConnection and the replica's DataServer."""

from services.contracts.transport.frames import InferFrame
from services.gateway.upstream import replica_connection
from services.replica.transport.data_server import DataServer

from .payloads import Handler

_SERVERS: list[DataServer] = []


def _address(address: str) -> str:
    return f"unix:{address}" if address.startswith("/") else address


async def serve(handler: Handler, address: str) -> None:
    """Serves the handler on a data port."""

    async def infer(frame: InferFrame) -> bytes:
        return await handler(frame.request)

    async def statistics() -> bytes:
        return b""

    server = DataServer(infer, statistics)
    _SERVERS.append(server)
    await server.listen(_address(address))


class SmeltLink:
    """A connection, asked as a gateway asks: with a deadline."""

    def __init__(self, connection: replica_connection.ReplicaConnection) -> None:
        self._connection = connection

    async def call(self, request: bytes) -> bytes:
        """Forwards the request's bytes."""
        return await self._connection.infer(request, 30.0)


async def connect(address: str) -> SmeltLink:
    """Opens the connection."""
    return SmeltLink(await replica_connection.connect(_address(address)))
