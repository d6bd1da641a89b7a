"""A client's connection: uvicorn's, with bounds of memory and time that uvicorn has not."""

import asyncio
import re
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from services.gateway.http.answers import error_body
from services.grpc_server.limits import Limits

# Of each field, as gRPC's port counts them (RFC 9113, section 6.5.2).
_FIELD_BYTES: Final = 32


# Among the extensions of a request's scope.
CONNECTION: Final = "smelt.connection"


_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
# As long as what it replaces: a head that came in parts may have its end behind what is looked at.
_NO_UPGRADE: Final = b"\r\nxpgrade:"
_END_OF_HEAD: Final = b"\r\n\r\n"
# That wait behind the one that is answered: each takes far more memory than its bytes do.
_MOST_PIPELINED: Final = 16


class _HeadTooLargeError(Exception):
    """Ends the parser; uvicorn answers by `send_400_response`."""


class _TooManyPipelinedError(Exception):
    """The same."""


class HttpConnection(HttpToolsProtocol):
    """Ends what sends too large a head, sends or reads too slowly, or is one too many."""

    def __init__(self, limits: Limits, *of_uvicorn: Any, **named: Any) -> None:
        """As uvicorn makes it.

        Args:
            limits: of clients.
            *of_uvicorn: what uvicorn gives its own.
            **named: the same.

        Attributes:
            answering: the task of the request that is being answered, cancelled when the client
                leaves; None where it shall not be.
        """
        super().__init__(*of_uvicorn, **named)
        self._limits = limits
        now_s = self.loop.time()
        self._opened_s = now_s
        # Of the request that is not complete; the first one is due from the beginning.
        self._began_s = now_s
        self._came_s = now_s
        self._is_coming = True
        self._is_head = True
        self._num_head_bytes = 0
        self._num_unread_bytes = 0
        self._last_bytes = b""
        # Whether what came last was a body, or the end of a request.
        self._is_past = False
        self._unsent: tuple[int, float] = (0, now_s)
        self.answering: asyncio.Task[Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One more; closed where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        super().connection_lost(exc)
        if self.answering is not None:
            self.answering.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse, unless the connection was closed."""
        if self.transport.is_closing():
            return
        self._came_s = self.loop.time()
        if self._is_head or not self._is_coming:
            before = self._last_bytes if self._is_head else b""
            data = _without_upgrade(data, before)
        self._is_past = False
        super().data_received(data)
        self._last_bytes = (self._last_bytes + data[-3:])[-3:]
        # The parser keeps a field until it is whole, of a head and behind a body in chunks.
        self._num_unread_bytes = 0 if self._is_past else self._num_unread_bytes + len(data)
        if self._num_unread_bytes > 2 * self._limits.max_metadata_bytes and self._is_coming:
            self._num_head_bytes = self._num_unread_bytes
            if not self.transport.is_closing():
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]
        self._began_s = self.loop.time()
        self._is_coming = True
        self._is_head = True
        self._num_head_bytes = 0
        self._num_unread_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field; those behind a body are no part of the head (RFC 9110, section 6.5.1)."""
        self._count(len(name) + len(value) + _FIELD_BYTES)
        if self._is_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body follows; raises _TooManyPipelinedError where too many requests wait."""
        self._is_head = False
        if len(self.pipeline) == _MOST_PIPELINED:
            raise _TooManyPipelinedError
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._is_past = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Nothing is due until the next request begins."""
        self._is_coming = False
        self._is_past = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, and close."""
        if self._num_head_bytes > self._limits.max_metadata_bytes:
            most = self._limits.max_metadata_bytes
            self._refuse(431, f"header fields: at most {most} bytes are received")
        elif len(self.pipeline) >= _MOST_PIPELINED:
            self._refuse(429, f"more than {_MOST_PIPELINED} requests wait on this connection")
        else:
            self._refuse(400, msg)

    def check(self, now_s: float) -> None:
        """End it where nothing comes, or nothing is read; runs once a second."""
        limits = self._limits
        if self.flow.write_paused:
            self._check_reader(now_s)
        elif self._is_coming and not self.flow.read_paused:
            due_s = limits.handshake_timeout_s if self._is_head else limits.max_request_age_s
            if now_s - self._began_s > due_s or now_s - self._came_s > limits.stall_timeout_s:
                self._refuse(408, "the request arrived too slowly")
        if 0 < limits.max_connection_age_s < now_s - self._opened_s:
            self.shutdown()

    def _check_reader(self, now_s: float) -> None:
        left = self.transport.get_write_buffer_size()
        former, since_s = self._unsent
        if left != former:
            self._unsent = (left, now_s)
        elif now_s - since_s > self._limits.stall_timeout_s:
            self.transport.abort()

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self._limits.max_metadata_bytes:
            raise _HeadTooLargeError

    def _refuse(self, status: int, why: str) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = error_body(why)
            fields = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            head = STATUS_LINE[status] + fields + b"connection: close\r\n\r\n"
            self.transport.write(head + body)
        self.transport.close()


def _without_upgrade(data: bytes, before: bytes) -> bytes:
    """The head of a request as if it offered no other protocol, which it need not be answered in.

    Java's client offers HTTP/2 so; httptools would take what follows for that, and drop the body.

    Args:
        data: begins within a head, and may go on behind it.
        before: the last bytes of the same head that came before, where its end may begin.
    """
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, end, rest = (before + data).partition(_END_OF_HEAD)
    return (_UPGRADE.sub(_NO_UPGRADE, head) + end + rest)[len(before) :]
