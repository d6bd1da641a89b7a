"""One connection as asyncio sees it: bytes in, its beginning and its end."""

import asyncio
import logging
import random
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import grpc

from services.grpc_server.frame_writer import FrameWriter
from services.grpc_server.frames import (
    PREFACE,
    ErrorCode,
    Http2ConnectionError,
    Setting,
    goaway,
    settings_frame,
    window_update,
)
from services.grpc_server.limits import (
    CONNECTION_WINDOW,
    DEFAULT_WINDOW,
    FRAME_BYTES,
    STREAM_WINDOW,
    Limits,
)
from services.grpc_server.server_options import ServerOptions
from services.grpc_server.streams import Streams

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

logger = logging.getLogger(__name__)

# Data that waits in the transport while a client does not read; the rest waits for its turn.
_WRITE_HIGH_BYTES: Final = 1 << 20
# A host that vanished without a word is given up within a minute or two.
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 60_000),
)
# Of the largest age, so that connections of one moment end at several.
_AGES: Final = (0.9, 1.1)
_REASONS: Final = {ErrorCode.ENHANCE_YOUR_CALM: "flood", ErrorCode.INTERNAL_ERROR: "internal"}
_METHOD: Final = PREFACE[:4]
_NOT_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"this port speaks gRPC, which is HTTP/2\n"
)


class ServerCallbacks(Protocol):
    """The server of a connection."""

    options: ServerOptions

    def handler(self, path: str) -> "Handler | None":
        """Of a method, None for an unknown one."""
        ...

    def connection_opened(self, connection: "Connection") -> bool:
        """It is open; False when there are too many."""
        ...

    def connection_closed(self, connection: "Connection", reason: str) -> None:
        """It is gone; for the reasons see `Connection`."""
        ...


# Why connections end: silent is without preface or SETTINGS, protocol any other fault of the
# client, unread one that reads none of its answers, limit one too many, stopped the server's end,
# internal a fault of this server.
END_REASONS: Final = (
    "client", "silent", "flood", "protocol", "unread", "idle", "age", "limit", "stopped",
    "internal",
)  # fmt: skip


class Connection(asyncio.BufferedProtocol):
    """Made by the event loop for each client that connects; ends by one of END_REASONS."""

    def __init__(self, host: ServerCallbacks) -> None:
        self._host = host
        self._preface = memoryview(bytearray(len(PREFACE)))
        self._num_preface_bytes = 0
        self._is_over = self._is_patient = self._has_sent_settings = False
        self._is_draining = False
        self._transport: asyncio.Transport | None = None
        self._reason = "client"
        self._timers: list[asyncio.TimerHandle] = []

    def drain(self, reason: str = "stopped") -> None:
        """Answer what was asked, take nothing new, then close."""
        self._is_draining, self._reason = True, reason
        # Clients take nothing else first, and one whose greeting is on its way is still served.
        self._send_settings()
        self._streams.drain()

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End every call with a status, and close."""
        self._streams.end_all(code, details)
        self.close()

    def close(self, *, is_patient: bool = False) -> None:
        """Close once what is written has gone out, which only a patient one lets take long."""
        self._is_patient = is_patient
        transport = self._transport
        if transport is None or self._is_over:
            return
        self._is_over = True
        self._writer.close()
        try:
            if transport.can_write_eof():
                # The kernel drops what is not sent yet, the reason for this included, when a
                # socket is closed that has bytes to be read: read on until the peer is done too.
                transport.write_eof()
            else:
                transport.close()
        except OSError:
            # The peer is gone, which asyncio's own loop has not noticed yet.
            transport.abort()
        else:
            self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        linger_s = self._host.options.limits.linger_s
        asyncio.get_running_loop().call_later(linger_s, self._lingered, transport)

    def _lingered(self, transport: asyncio.Transport) -> None:
        if self._is_patient and transport.get_write_buffer_size():
            self._linger(transport)
        else:
            transport.abort()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's greeting, which comes without ours."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        _tune(transport.get_extra_info("socket"))
        host, peer = self._host, peer_name(transport.get_extra_info("peername"))
        self._writer = FrameWriter(self._transport)
        # Whoever has been answered gets the answer, however slowly: the grace of a stop is for it.
        finish = partial(self.close, is_patient=True)
        self._streams = Streams(host.handler, host.options, self._writer, peer, finish)
        self._reader = self._streams.reader
        self._keep_time()
        if not host.connection_opened(self):
            self._reason = "limit"
            self._transport.abort()

    def _keep_time(self) -> None:
        limits, loop = self._host.options.limits, asyncio.get_running_loop()
        self._busy_s, self._busy_id = loop.time(), 0
        self._timers = [
            loop.call_later(limits.handshake_timeout_s, self._expect_settings),
        ]
        if limits.max_connection_age_s:
            # Not all at once where many came at once.
            age_s = limits.max_connection_age_s * random.uniform(*_AGES)  # noqa: S311
            self._timers.append(loop.call_later(age_s, self._drain_for, "age"))

    def _expect_settings(self) -> None:
        if not self._streams.control.has_settings and not self._is_over:
            self._reason = "silent"
            self.close()

    def check_progress(self) -> None:
        """End requests that do not come, and the connection when it is idle for too long."""
        limits, loop, streams = self._host.options.limits, asyncio.get_running_loop(), self._streams
        streams.check_progress()
        if streams.num_calls or streams.last_stream_id != self._busy_id:
            self._busy_s, self._busy_id = loop.time(), streams.last_stream_id
        elif 0 < limits.max_connection_idle_s <= loop.time() - self._busy_s:
            self._drain_for("idle")

    def _drain_for(self, reason: str) -> None:
        if not self._is_over and not self._is_draining:
            self.drain(reason)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reader knows better
        """Where the transport reads into."""
        if self._is_over:
            return self._reader.discard_buffer()
        if self._num_preface_bytes < len(PREFACE):
            return self._preface[self._num_preface_bytes :]
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        if self._is_over:
            return
        if self._num_preface_bytes < len(PREFACE):
            self._read_preface(nbytes)
            return
        try:
            has_time_left = self._reader.advance(nbytes)
        except Exception as error:
            self._fail_for(error)
            return
        if not has_time_left:
            # Others have their turn first, however much this client sends.
            cast("asyncio.Transport", self._transport).pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Read on, once what has come before is handed on."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            has_time_left = self._is_over or self._reader.resume()
        except Exception as error:
            self._fail_for(error)
            has_time_left = True
        if has_time_left:
            transport.resume_reading()
        else:
            asyncio.get_running_loop().call_soon(self._resume)

    def _fail_for(self, error: Exception) -> None:
        if isinstance(error, Http2ConnectionError):
            self._fail(error.code, str(error))
            return
        # Not the peer's fault; its other connections, and everybody else's, go on.
        logger.error("a connection of %s failed", self._streams.peer, exc_info=error)
        self._fail(ErrorCode.INTERNAL_ERROR, "internal error")

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writer.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - all end the same
        """Nobody waits for its calls."""
        self._is_over, self._is_patient = True, False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._writer.is_unread:
            self._reason = "unread"
        self._writer.connection_lost()
        self._streams.connection_lost()
        self._reader.release()
        self._host.connection_closed(self, self._reason)

    def _read_preface(self, num_bytes: int) -> None:
        self._num_preface_bytes += num_bytes
        said = bytes(self._preface[: self._num_preface_bytes])
        if not PREFACE.startswith(said):
            if said[:1].isalpha() and not said.startswith(_METHOD):
                # Whoever wrote it can read: a browser, curl, a health check of HTTP/1.
                self._writer.control(_NOT_HTTP2)
            self._reason = "protocol"
            self.close()
        elif len(said) == len(PREFACE):
            self._send_settings()

    def _send_settings(self) -> None:
        if not self._has_sent_settings:
            self._has_sent_settings = True
            self._writer.control(_initial_frames(self._host.options.limits))

    def _fail(self, code: ErrorCode, reason: str) -> None:
        logger.debug("connection of %s: %s: %s", self._streams.peer, code.name, reason)
        self._reason = _REASONS.get(code, "protocol")
        self._streams.connection_lost()
        self._writer.control(goaway(self._streams.last_stream_id, code, reason))
        self.close()


def _initial_frames(limits: Limits) -> bytes:
    settings = {
        Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        Setting.MAX_FRAME_SIZE: FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_metadata_bytes,
    }
    return settings_frame(settings) + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)


def peer_name(address: Any) -> str:
    """A client's address as gRPC names it: `ipv4:127.0.0.1:50000`, `ipv6:[::1]:50000`."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    # On a socket for both, IPv4 comes in IPv6's clothes.
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
