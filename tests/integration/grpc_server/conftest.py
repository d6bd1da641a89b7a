"""The server under test on real sockets, gRPC's own clients and raw ones."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import grpc
import pytest
import uvloop

from services.contracts.large_buffer import Take
from services.grpc_server.limits import Limits
from services.grpc_server.server import GrpcServer
from services.grpc_server.server_options import Check, OverloadStatus, UnhandledCall
from tests.integration.grpc_server.probe import SERVICE, Handlers, Probe
from tests.integration.grpc_server.raw_client import RawClient

Loops = dict[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Loops:
    """uvloop, as in a gateway; what is read off sockets is tried on asyncio's own loop too."""
    loops: Loops = {"uvloop": uvloop.new_event_loop}
    if not item.path.name.startswith("test_grpc"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


class Host:
    """Servers under test and the clients of the last one; all are closed after the test.

    Attributes:
        unhandled: what servers said of calls whose handlers do not know how they ended.
        gone: for what reason each connection ended.
        errors: what reached the event loop's handler of errors that nobody took.
    """

    def __init__(self) -> None:
        self.probe = Probe()
        self.port = 0
        self.errors: list[dict[str, Any]] = []
        self.unhandled: list[UnhandledCall] = []
        self.gone: list[str] = []
        self._servers: list[GrpcServer] = []
        self._channels: list[Any] = []
        self._raw: list[RawClient] = []

    @property
    def server(self) -> GrpcServer:
        """The last one started."""
        return self._servers[-1]

    async def serve(
        self,
        limits: Limits | None = None,
        methods: Handlers = MappingProxyType({}),
        port: int = 0,
        check: Check | None = None,
        take: Take | None = None,
        overload: OverloadStatus | None = None,
        **more: Any,
    ) -> int:
        """Starts a server with the probe's methods, and more of them; returns its port."""
        limits = limits or Limits()
        if limits.max_ping_strikes == Limits.max_ping_strikes:
            # Tests wait by PING: as often as it takes.
            limits = replace(limits, max_ping_strikes=1 << 30)
        server = GrpcServer(
            limits,
            take=take,
            check=check,
            on_unhandled=self.unhandled.append,
            overload=overload,
            on_connections=lambda _, reason: self.gone.append(reason) if reason else None,
        )
        server.add_generic_rpc_handlers((self.probe.generic(),))
        server.add_registered_method_handlers("test.More", methods)
        self._servers.append(server)
        self.port = await server.start("127.0.0.1", port, **more)
        return self.port

    async def dial(self, first: bytes | None = None) -> RawClient:
        """A raw connection that has sent its first bytes."""
        client = await RawClient.dial(self.port, first)
        self._raw.append(client)
        return client

    def channel(self, credentials: grpc.ChannelCredentials | None = None, **options: Any) -> Any:
        """A client of gRPC's own; options without their `grpc.`."""
        pairs = [(f"grpc.{name}", value) for name, value in options.items()]
        # Without this, channels with like options share one connection.
        pairs += [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        target = f"127.0.0.1:{self.port}"
        if credentials:
            channel = grpc.aio.secure_channel(target, credentials, options=pairs)
        else:
            channel = grpc.aio.insecure_channel(target, options=pairs)
        self._channels.append(channel)
        return channel

    def unary(self, method: str = "Echo", **options: Any) -> Any:
        """A stub for one unary method, on a channel of its own."""
        return self.channel(**options).unary_unary(f"/{SERVICE}/{method}")

    def ended(self) -> list[tuple[str, str]]:
        """Method and code of those calls."""
        return [(each.path.rpartition("/")[2], each.code.name) for each in self.unhandled]

    def note_error(self, _: asyncio.AbstractEventLoop, error: dict[str, Any]) -> None:
        """What nobody took, but for what gRPC's client says of its own queue of events."""
        # Loops of several tests share its descriptor, and one may find nothing there.
        if "PollerCompletionQueue" not in error["message"]:
            self.errors.append(error)

    async def close(self) -> None:
        """Closes everything that was opened here."""
        for client in self._raw:
            client.close()
        for channel in self._channels:
            await channel.close()
        for server in self._servers:
            await server.stop(0)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """Serve and connect; nothing may reach the event loop's handler of errors."""
    host = Host()
    asyncio.get_running_loop().set_exception_handler(host.note_error)
    yield host
    await host.close()
    assert not host.errors
