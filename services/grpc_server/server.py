"""A gRPC server on asyncio with an HTTP/2 of its own.

grpc.aio serves a request on a thread of its own, by some twenty system calls and five tasks. Here a
request is served within one iteration of the event loop: a small one costs a tenth, and all
requests that came together are read by one system call and answered by one
(`tests/benchmarks/results/`). Handlers, servicers and generated code are gRPC's, unchanged.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from services.contracts.transport.large_buffer import Take
from services.grpc_server.http2.connection import Connection
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import Limits
from services.grpc_server.listening import close_sockets, listening_sockets
from services.grpc_server.request.request_memory import RequestMemory
from services.grpc_server.server_options import Check, OverloadStatus, ServerOptions, UnhandledCall
from services.grpc_server.tls_listener import BACKLOG, TlsListener

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]
    GenericHandler = grpc.GenericRpcHandler[Any, Any]


# How long connections may take to close behind GOAWAY.
_CLOSE_TIMEOUT_S: Final = 2.0


class _Details(NamedTuple):
    """gRPC's HandlerCallDetails, by which handlers are looked up."""

    method: str
    invocation_metadata: Sequence[tuple[str, str | bytes]] = ()


class GrpcServer:
    """Serves handlers, which are coroutines or asynchronous generators, on one port.

    Attributes:
        options: of each call.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        take: Take | None = None,
        check: Check | None = None,
        on_unhandled: Callable[[UnhandledCall], None] = lambda _: None,
        overload: OverloadStatus | None = None,
        on_connections: Callable[[int, str], None] = lambda _, __: None,
    ) -> None:
        """Nothing listens yet; for the other arguments see `ServerOptions`.

        `on_connections` is called when a connection opens or closes, with the number of open ones
        and the reason (see `END_REASONS`), which is "" for one that opens.
        """
        self._on_connections = on_connections
        limits = limits or Limits()
        self.options = ServerOptions(
            limits=limits,
            take=take,
            check=check,
            on_unhandled=on_unhandled,
            memory=RequestMemory(limits.max_upload_bytes, limits.unfinished_bytes),
            unread=UnreadAnswers(limits.unread_bytes),
            overload=overload or OverloadStatus(),
        )
        self._generic: list[GenericHandler] = []
        self._known: dict[str, Handler] = {}
        self._connections: set[Connection] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server | TlsListener] = []
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    def add_generic_rpc_handlers(self, handlers: "Sequence[GenericHandler]") -> None:
        """Serve these too; the first that knows a method has it."""
        self._generic += handlers

    def add_registered_method_handlers(
        self, service: str, handlers: "Mapping[str, Handler]"
    ) -> None:
        """Serve the methods of a service: generated code calls this beside the other."""
        self._known |= {f"/{service}/{name}": each for name, each in handlers.items()}

    async def start(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        is_shared: bool = False,
    ) -> int:
        """Listen.

        Args:
            host: an address or a name; `[::]` and `::` are all addresses of the host.
            port: 0 takes a free one.
            tls: of the port; None for plain text.
            is_shared: other processes may listen on the port too.

        Returns:
            The port.

        Raises:
            OSError: the port cannot be bound.
        """
        sockets = listening_sockets(host, port, is_shared=is_shared)
        taken: int = sockets[0].getsockname()[1]
        try:
            while sockets:
                self._servers.append(await self._serve(sockets[0], tls))
                # Closed by the server from here on.
                del sockets[0]
        finally:
            close_sockets(sockets)
        # One timer for all ports.
        if self._check_timer is None:
            self._schedule_check()
        return taken

    async def _serve(
        self, listening: socket.socket, tls: ssl.SSLContext | None
    ) -> asyncio.Server | TlsListener:
        protocol = partial(Connection, self)
        loop = asyncio.get_running_loop()
        if tls is not None:
            timeout_s = self.options.limits.handshake_timeout_s
            connect = partial(
                loop.connect_accepted_socket, protocol, ssl=tls, ssl_handshake_timeout=timeout_s
            )
            return TlsListener(listening, connect, self._has_room)
        return await loop.create_server(protocol, sock=listening, backlog=BACKLOG)

    def _has_room(self) -> bool:
        """Whether a TLS handshake may begin: it counts as the connection that it may become."""
        listeners = [each for each in self._servers if isinstance(each, TlsListener)]
        num_open = len(self._connections) + sum(len(each.handshakes) for each in listeners)
        return num_open < self.options.limits.max_connections

    def check_progress(self) -> None:
        """End requests that do not come, and idle connections; runs on a timer."""
        # A copy: a connection that is closed takes itself out.
        for connection in tuple(self._connections):
            connection.check_progress()

    def _schedule_check(self) -> None:
        def check() -> None:
            self._schedule_check()
            self.check_progress()

        interval_s = self.options.limits.check_interval_s
        self._check_timer = asyncio.get_running_loop().call_later(interval_s, check)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let open ones end within the grace, and close."""
        self._is_stopping = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        # Before GOAWAY: clients that leave now shall not connect here again.
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()
        if not await self._are_gone(grace_s):
            for connection in list(self._connections):
                connection.end(
                    grpc.StatusCode.UNAVAILABLE, "the server stopped before this call was answered"
                )
            await self._are_gone(_CLOSE_TIMEOUT_S)

    async def _are_gone(self, timeout_s: float) -> bool:
        """Wait until no connection is open; False when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._connections:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # ---- called by connections

    def handler(self, path: str) -> "Handler | None":
        """Of a method, None for an unknown one."""
        known = self._known.get(path)
        return known if known is not None else self._find(path)

    def connection_opened(self, connection: Connection) -> bool:
        """A connection opens; False where there are too many."""
        if len(self._connections) >= self.options.limits.max_connections:
            return False
        self._connections.add(connection)
        self._on_connections(len(self._connections), "")
        if self._is_stopping:
            # Accepted before, with a TLS handshake that ends now.
            connection.drain()
        return True

    def connection_closed(self, connection: Connection, reason: str) -> None:
        """A connection is closed; see `END_REASONS`."""
        self._connections.discard(connection)
        self._on_connections(len(self._connections), reason)
        self._changed.set()

    def _find(self, path: str) -> "Handler | None":
        for generic in self._generic:
            handler = generic.service(_Details(path))  # type: ignore[arg-type] # it has both
            if handler is not None:
                # Unknown paths are not kept: clients can invent any number.
                self._known[path] = handler
                return handler
        return None
