"""One connection as asyncio's protocol: preface, reads, age and idleness, and its end."""

import asyncio
import logging
import random
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.http2.frames import (
    PREFACE,
    ErrorCode,
    Http2ConnectionError,
    Setting,
    goaway,
    settings_frame,
    window_update,
)
from services.grpc_server.http2.streams import Streams
from services.grpc_server.limits import (
    CONNECTION_WINDOW,
    DEFAULT_WINDOW,
    FRAME_BYTES,
    STREAM_WINDOW,
    Limits,
)

if TYPE_CHECKING:
    from services.grpc_server.server import GrpcServer

logger = logging.getLogger(__name__)

# Of the transport's write buffer; beyond it, DATA waits in its streams.
_WRITE_HIGH_BYTES: Final = 1 << 20
# TCP keepalive: a host that vanished is detected within two minutes.
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 60_000),
)
# Jitter of the largest age, as gRPC has it: connections of one moment do not all end together.
_AGES: Final = (0.9, 1.1)
_REASONS: Final = {ErrorCode.ENHANCE_YOUR_CALM: "flood", ErrorCode.INTERNAL_ERROR: "internal"}
_METHOD: Final = PREFACE[:4]
_NOT_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"this port speaks gRPC, which is HTTP/2\n"
)


# Why connections end: silent is without preface or SETTINGS, protocol any other error of the
# client, unread a client that reads no answers, limit one beyond max_connections, stopped the end
# of the server, internal an error of this server.
END_REASONS: Final = (
    "client",
    "silent",
    "flood",
    "protocol",
    "unread",
    "idle",
    "age",
    "limit",
    "stopped",
    "internal",
)


class Connection(asyncio.BufferedProtocol):
    """One client's; ends for one of END_REASONS."""

    def __init__(self, server: "GrpcServer") -> None:
        self._server = server
        self._preface = memoryview(bytearray(len(PREFACE)))
        self._num_preface_bytes = 0
        self._is_over = self._is_patient = self._has_sent_settings = False
        self._is_draining = False
        self._transport: asyncio.Transport | None = None
        self._reason = "client"
        self._timers: list[asyncio.TimerHandle] = []

    def drain(self, reason: str = "stopped") -> None:
        """Send GOAWAY, answer the calls that are open, then close."""
        self._is_draining = True
        self._reason = reason
        # SETTINGS come first, also where the client's preface is still to come.
        self._send_settings()
        self._streams.drain()

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End every call with a status, and close."""
        self._streams.end_all(code, details)
        self.close()

    def close(self, *, is_patient: bool = False) -> None:
        """Close once the write buffer is empty; a patient one waits for that beyond `linger_s`."""
        self._is_patient = is_patient
        transport = self._transport
        if transport is None or self._is_over:
            return
        self._is_over = True
        self._writer.close()
        try:
            if transport.can_write_eof():
                # A socket that is closed with unread bytes sends RST, which drops GOAWAY too: read
                # on until the peer has closed its side.
                transport.write_eof()
            else:
                transport.close()
        except OSError:
            # Closed by the peer, which asyncio's own loop has not noticed yet.
            transport.abort()
        else:
            self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        linger_s = self._server.options.limits.linger_s
        asyncio.get_running_loop().call_later(linger_s, self._lingered, transport)

    def _lingered(self, transport: asyncio.Transport) -> None:
        if self._is_patient and transport.get_write_buffer_size():
            self._linger(transport)
        else:
            transport.abort()

    # ---- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's preface."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        _tune(transport.get_extra_info("socket"))
        server = self._server
        peer = peer_name(transport.get_extra_info("peername"))
        self._writer = FrameWriter(self._transport, server.options.unread)
        # Answers to slow readers are still sent: the grace of a stop is for them.
        finish = partial(self.close, is_patient=True)
        self._streams = Streams(server.handler, server.options, self._writer, peer, finish)
        self._reader = self._streams.reader
        self._keep_time()
        if not server.connection_opened(self):
            self._reason = "limit"
            self._transport.abort()

    def _keep_time(self) -> None:
        limits = self._server.options.limits
        loop = asyncio.get_running_loop()
        self._busy_s = loop.time()
        self._busy_id = 0
        self._timers = [
            loop.call_later(limits.handshake_timeout_s, self._expect_settings),
        ]
        if limits.max_connection_age_s:
            age_s = limits.max_connection_age_s * random.uniform(*_AGES)  # noqa: S311
            self._timers.append(loop.call_later(age_s, self._drain_for, "age"))

    def _expect_settings(self) -> None:
        if not self._streams.control.has_settings and not self._is_over:
            self._reason = "silent"
            self.close()

    def check_progress(self) -> None:
        """End requests that do not come, and the connection when it is idle for too long."""
        limits = self._server.options.limits
        loop = asyncio.get_running_loop()
        streams = self._streams
        streams.check_progress()
        self._writer.mark_time()
        if streams.num_calls or streams.last_stream_id != self._busy_id:
            self._busy_s = loop.time()
            self._busy_id = streams.last_stream_id
        elif 0 < limits.max_connection_idle_s <= loop.time() - self._busy_s:
            self._drain_for("idle")

    def _drain_for(self, reason: str) -> None:
        if not self._is_over and not self._is_draining:
            self.drain(reason)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - of asyncio's interface
        """The buffer of the next read."""
        if self._is_over:
            return self._reader.discard_buffer()
        if self._num_preface_bytes < len(PREFACE):
            return self._preface[self._num_preface_bytes :]
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was read."""
        if self._is_over:
            return
        if self._num_preface_bytes < len(PREFACE):
            self._read_preface(nbytes)
            return
        try:
            has_time_left = self._reader.advance(nbytes)
        except Exception as error:
            self._fail(error)
            return
        if not has_time_left:
            # Its time slice is used: other connections come first, however much this client sends.
            cast("asyncio.Transport", self._transport).pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Parse what is left of the last read, then read on."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            has_time_left = self._is_over or self._reader.resume()
        except Exception as error:
            self._fail(error)
            has_time_left = True
        if has_time_left:
            transport.resume_reading()
        else:
            asyncio.get_running_loop().call_soon(self._resume)

    def pause_writing(self) -> None:
        """The write buffer is full."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """The write buffer has space again."""
        self._writer.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncio's interface
        """Cancel its calls."""
        self._is_over = True
        self._is_patient = False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._writer.is_unread:
            self._reason = "unread"
            logger.warning("connection of %s ended: answers are not read", self._streams.peer)
        self._writer.connection_lost()
        self._streams.connection_lost()
        self._reader.release()
        self._server.connection_closed(self, self._reason)

    def _read_preface(self, num_bytes: int) -> None:
        self._num_preface_bytes += num_bytes
        received = bytes(self._preface[: self._num_preface_bytes])
        if not PREFACE.startswith(received):
            if received[:1].isalpha() and not received.startswith(_METHOD):
                # HTTP/1: a browser, curl, a load balancer's health check.
                self._writer.control(_NOT_HTTP2)
            self._reason = "protocol"
            self.close()
        elif len(received) == len(PREFACE):
            self._send_settings()

    def _send_settings(self) -> None:
        if not self._has_sent_settings:
            self._has_sent_settings = True
            self._writer.control(_initial_frames(self._server.options.limits))

    def _fail(self, error: Exception) -> None:
        """A connection error (RFC 9113, section 5.4.1)."""
        peer = self._streams.peer
        if isinstance(error, Http2ConnectionError):
            code = error.code
            reason = str(error)
            logger.debug("connection of %s: %s: %s", peer, code.name, reason)
        else:
            # An error of this server ends one connection alone.
            code = ErrorCode.INTERNAL_ERROR
            reason = "internal error"
            logger.error("a connection of %s failed", peer, exc_info=error)
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
    # SETTINGS do not change the connection's window (section 6.9.2): that takes WINDOW_UPDATE.
    return settings_frame(settings) + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)


def peer_name(address: Any) -> str:
    """A client's address as gRPC names it: `ipv4:127.0.0.1:50000`, `ipv6:[::1]:50000`."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    # A dual-stack socket shows IPv4 addresses as IPv4-mapped IPv6.
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
