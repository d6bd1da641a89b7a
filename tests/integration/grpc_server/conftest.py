"""The server under test on real sockets, gRPC's own clients and raw ones."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import grpc
import pytest
import uvloop
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from services.contracts.transport.large_buffer import Take
from services.grpc_server.aio_server import AioServer
from services.grpc_server.limits import Limits
from services.grpc_server.server import GrpcServer
from services.grpc_server.server_options import Check, OverloadStatus, UnhandledCall
from tests.certificates import CertificateFiles
from tests.integration.grpc_server.both_servers import SERVERS, ServerClass, chosen
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
        is_ours: they are `GrpcServer`, or else `AioServer`.
        unhandled: what servers said of calls whose handlers do not know how they ended.
        gone: for what reason each connection ended.
        errors: what reached the event loop's handler of errors that nobody took.
    """

    def __init__(self, server_class: ServerClass) -> None:
        self.is_ours = server_class is GrpcServer
        self.probe = Probe()
        self.port = 0
        self.errors: list[dict[str, Any]] = []
        self.unhandled: list[UnhandledCall] = []
        self.gone: list[str] = []
        self._servers: list[Any] = []
        self._channels: list[Any] = []
        self._raw: list[RawClient] = []

    @property
    def server(self) -> Any:
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
        server: GrpcServer | AioServer = AioServer(limits)
        if self.is_ours:
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

    def tls(self, files: CertificateFiles) -> Any:
        """A server's TLS with this certificate, as it takes it."""
        if not self.is_ours:
            return grpc.ssl_server_credentials([(files.key.read_bytes(), files.cert.read_bytes())])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
        context.set_alpn_protocols(["h2"])
        return context

    async def ended_by_error(self, client: RawClient, code: ErrorCodes) -> None:
        """A connection error: the server closes, with GOAWAY and this code as its last frame.

        C-core closes without GOAWAY, which RFC 9113, section 5.4.1, allows.
        """
        told = await client.goaway()
        if self.is_ours or told is not None:
            assert told == code
            assert isinstance(client.frames[-1], GoAwayFrame)

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each case is there for both servers."""
    if "host" in metafunc.fixturenames:
        metafunc.parametrize("host", SERVERS.values(), ids=SERVERS.keys(), indirect=True)


# Within the wrappers of pytest's own plugins, which take cases out: all of a module are seen.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip what grpc.aio does otherwise; an entry of its table that is of no use is an error."""
    report = yield
    if not isinstance(collector, pytest.Module) or not report.passed:
        return report
    try:
        report.result = list(chosen(collector.path, report.result))
    except ValueError as error:
        return pytest.CollectReport(report.nodeid, "failed", str(error), [])
    return report


@pytest.fixture
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """Serve and connect; nothing may reach the event loop's handler of errors."""
    host = Host(request.param)
    asyncio.get_running_loop().set_exception_handler(host.note_error)
    yield host
    await host.close()
    assert not host.errors
