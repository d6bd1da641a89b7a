"""The HTTP port: uvicorn with httptools, in the gateway's event loop."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any, Final

import uvicorn

from services.gateway.http.http_app import HttpApp
from services.gateway.http.http_connection import HttpConnection
from services.grpc_server.limits import Limits
from services.grpc_server.listening import close_sockets, listening_sockets
from services.grpc_server.tls_listener import BACKLOG, TlsListener

_NEVER_S: Final = 1 << 30
# uvicorn ticks ten times a second.
_TICKS_PER_CHECK: Final = 10


class HttpServer:
    """Serves an application on one port."""

    def __init__(self, app: HttpApp, limits: Limits) -> None:
        """Nothing listens yet."""
        self._app = app
        self._limits = limits
        self._server: _Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, is_shared: bool
    ) -> int:
        """Listen; see `GrpcServer.start` for arguments and errors."""
        sockets = listening_sockets(host, port, is_shared=is_shared)
        taken: int = sockets[0].getsockname()[1]
        self._server = _Server(self._config())
        try:
            await self._server.startup([] if tls else sockets)
            if tls:
                self._server.listen(sockets, tls, self._limits)
        except BaseException:
            close_sockets(sockets)
            raise
        self._ticking = asyncio.create_task(self._server.main_loop(), name="serve HTTP")
        return taken

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, let those that run end within the grace, and close."""
        if self._server is None or self._ticking is None:
            return
        self._server.should_exit = True
        self._server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]
        await asyncio.gather(self._ticking, self._server.shutdown())
        # Answers to what was cancelled are written by now; who does not read them is cut off.
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            # uvicorn calls it as the class that it is declared to be.
            http=partial(HttpConnection, self._limits),  # type: ignore[arg-type]
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            # A client's faults are its answers, and no lines of our log.
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=ceil(self._limits.max_connection_idle_s) or _NEVER_S,
            # No request shall see whose the one before it was.
            reset_contextvars=True,
        )
        config.load()
        return config


class _Server(uvicorn.Server):
    """uvicorn's, which also checks connections, and counts TLS handshakes as such."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.lifespan: Any = config.lifespan_class(config)

    def listen(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext, limits: Limits) -> None:
        """Serve over TLS."""
        made: Any = self.config.http_protocol_class
        protocol = partial(
            made,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        listeners: list[TlsListener] = []

        def has_room() -> bool:
            num_begun = sum(len(each.handshakes) for each in listeners)
            return len(self.server_state.connections) + num_begun < limits.max_connections

        connect = partial(
            asyncio.get_running_loop().connect_accepted_socket,
            protocol,
            ssl=tls,
            ssl_handshake_timeout=limits.handshake_timeout_s,
        )
        listeners += [TlsListener(each, connect, has_room) for each in sockets]
        # It closes them, and does no more with them.
        self.servers += listeners  # type: ignore[arg-type]

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s; whether to stop."""
        if counter % _TICKS_PER_CHECK == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                assert isinstance(connection, HttpConnection)
                connection.check(now_s)
        return await super().on_tick(counter)
