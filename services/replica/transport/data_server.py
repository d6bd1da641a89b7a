"""The data port of a replica: frames in, an async handler, frames out.

Listens on any number of TCP and unix addresses. Answers leave in the order they are ready. A
request ends without an answer when the gateway cancels it or its connection is lost; its
handler's future is then cancelled.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from services.contracts.errors import (
    InvalidRequestError,
    NotReadyError,
    SmeltError,
)
from services.contracts.security.fleet_security import FleetTls, warn_in_the_clear
from services.contracts.transport.busy_poll import BusyPoll
from services.contracts.transport.frame_protocol import FrameProtocol, parse_address
from services.contracts.transport.frames import (
    CONNECTION_ID,
    NO_TOKEN,
    Frame,
    InferFrame,
    Kind,
    decode_infer,
    encode_error,
)
from services.contracts.transport.lent_memory import PLACE
from services.grpc_server.tls_listener import TlsListener
from services.replica.closing import close_all, ended, stop_accepting
from services.replica.transport.fleet_handshake import fleet_handshake
from services.replica.transport.shared_buffers import SharedBuffers

logger = logging.getLogger(__name__)

# How long a gateway may take to read the last answers.
_CLOSE_TIMEOUT_S = 1.0

# A coroutine runs as a task of its own; a future costs less.
InferHandler = Callable[[InferFrame], Coroutine[Any, Any, bytes] | asyncio.Future[bytes]]
StatisticsHandler = Callable[[], Coroutine[Any, Any, bytes]]


@dataclass(eq=False, repr=False)  # its token is a secret
class DataServer:
    """Serves a replica's handlers to gateways.

    Attributes:
        infer: answers a request with a serialized ModelInferResponse; what it raises of
            SmeltError reaches the gateway in its class, anything else as a bare failure.
        statistics: answers with a serialized ModelStatistics.
        token: what gateways must send in HELLO; NO_TOKEN takes any.
        tls: of TCP ports; None leaves them in the clear, as unix sockets always are.
        greeting_timeout_s: how long a peer may take for a handshake, and to send HELLO.
        poll: of this process; notes the requests of all connections.
        addresses: where it listens, in the form `connect` of the gateway takes.
        connections: of gateways, that are open.
    """

    infer: InferHandler
    statistics: StatisticsHandler
    token: bytes = NO_TOKEN
    tls: FleetTls | None = None
    greeting_timeout_s: float = 10.0
    poll: BusyPoll | None = None
    is_draining: bool = field(default=False, init=False)
    addresses: list[str] = field(default_factory=list, init=False)
    connections: set["GatewayConnection"] = field(default_factory=set, init=False)
    _servers: list[asyncio.Server] = field(default_factory=list, init=False)
    _tls_ports: list[TlsListener] = field(default_factory=list, init=False)

    async def listen(self, address: str) -> str:
        """Listens on `host:port` or `unix:/path` and returns the address; port 0 takes a free one.

        Raises:
            InvalidRequestError: the address is malformed or is not available.
        """
        parts = parse_address(address)
        try:
            if isinstance(parts, str):
                await self._listen_unix(parts)
            else:
                address = f"{address.rpartition(':')[0]}:{await self._listen_tcp(*parts)}"
        except OSError as error:
            raise InvalidRequestError(
                f"data port cannot listen on {address}: {error}; choose another address"
            ) from error
        self.addresses.append(address)
        return address

    async def _listen_unix(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._accepted, path))
        # Write permission on the socket is permission to use the replica.
        await asyncio.to_thread(Path(path).chmod, 0o600)

    async def _listen_tcp(self, host: str, port: int) -> int:
        if self.tls:
            listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
            shake = partial(fleet_handshake, self.tls, self._accepted, self.greeting_timeout_s)
            self._tls_ports.append(TlsListener(listening, shake))
            return int(listening.getsockname()[1])
        warn_in_the_clear("data port", host)
        server = await asyncio.get_running_loop().create_server(self._accepted, host, port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self, grace_s: float = 0.0) -> None:
        """Refuses new requests, waits up to `grace_s` for those in flight, closes all."""
        self.is_draining = True
        paths = [Path(a.removeprefix("unix:")) for a in self.addresses if a.startswith("unix:")]
        await close_all(
            *(partial(stop_accepting, server) for server in self._servers),
            *(partial(_close_port, port) for port in self._tls_ports),
            partial(self._close_connections, grace_s),
            *(partial(asyncio.to_thread, path.unlink, missing_ok=True) for path in paths),
        )

    async def _close_connections(self, grace_s: float) -> None:
        try:
            answers = [answer for c in self.connections for answer in c.answers.values()]
            if answers and grace_s > 0:
                await asyncio.wait(answers, timeout=grace_s)
            gone = [connection.gone for connection in self.connections]
            for connection in list(self.connections):
                connection.close()
            if gone:
                await asyncio.wait(gone, timeout=_CLOSE_TIMEOUT_S)
        finally:
            for connection in list(self.connections):
                connection.abort()

    def _accepted(self) -> "GatewayConnection":
        return GatewayConnection(self, self.connections)


async def _close_port(port: TlsListener) -> None:
    port.close()
    await close_all(*(partial(ended, handshake) for handshake in port.handshakes))


class GatewayConnection(FrameProtocol):
    """The replica's end of one gateway's connection.

    Attributes:
        answers: the requests in flight, by the gateway's id.
        gone: done when the connection is.
    """

    def __init__(self, server: DataServer, register: set["GatewayConnection"]) -> None:
        super().__init__()
        self.answers: dict[int, asyncio.Future[bytes]] = {}
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server = server
        self._register = register
        self._hello_timer: asyncio.TimerHandle | None = None
        self._lent: SharedBuffers | None = None
        register.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the gateway's HELLO, so long and no longer."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(self._server.greeting_timeout_s, self.abort)

    def opened(self) -> None:
        """The gateway sent HELLO and is accepted."""
        self._cancel_timer()
        self.send_hello()

    def check_token(self, token: bytes) -> None:
        """Accepts this replica's token; raises InvalidRequestError for others."""
        wanted = self._server.token
        if wanted != NO_TOKEN and not hmac.compare_digest(wanted, token):
            raise InvalidRequestError(
                "data port: wrong replica token: the peer is of another fleet, or addresses a "
                "replica that has ended"
            )

    def expects_more(self) -> bool:
        """While others are unanswered: answers of a batch are ready within one turn."""
        return bool(self.answers)

    def frame_received(self, frame: Frame) -> None:
        """Starts, cancels or answers a request."""
        match frame.kind:
            case Kind.INFER | Kind.STATISTICS:
                self._start(frame)
            case Kind.INFER_LENT:
                # First of all: a request that is refused gives its slot back too.
                self._start(frame._replace(kind=Kind.INFER, payload=self._lent_request(frame)))
            case Kind.CANCEL:
                if answer := self.answers.get(frame.request_id):
                    answer.cancel()
            case Kind.PING:
                self.send(Kind.PONG, frame.request_id)
            case Kind.LEND:
                self._map_shared(frame)
            case _:
                super().frame_received(frame)

    def _map_shared(self, frame: Frame) -> None:
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        try:
            self._lent = SharedBuffers.of_peer(connection, bytes(frame.payload))
        except InvalidRequestError as error:
            # The gateway can do without.
            self._send_failure(frame.request_id, error)
        else:
            self.send(Kind.OK, frame.request_id)

    def _lent_request(self, frame: Frame) -> memoryview:
        if self._lent is None or len(frame.payload) != PLACE.size:
            raise InvalidRequestError(
                f"data port: request {frame.request_id} references shared memory that is not "
                "registered on this connection"
            )
        begin, size = PLACE.unpack(frame.payload)
        if size > self.max_payload_bytes:
            raise InvalidRequestError(
                f"data port: request {frame.request_id} has {size} bytes, at most "
                f"{self.max_payload_bytes} are accepted"
            )
        return self._lent.view(begin, size)

    def _start(self, frame: Frame) -> None:
        request_id = frame.request_id
        if request_id in self.answers or request_id == CONNECTION_ID:
            raise InvalidRequestError(f"data port: request id {request_id} is in use")
        try:
            asked = self._asked(frame)
            # What ensure_future does, without its search for whatever else could be awaited.
            answer = asked if isinstance(asked, asyncio.Future) else self._loop.create_task(asked)
        except Exception as error:
            self._send_failure(request_id, error)
            return
        self.answers[request_id] = answer
        if self._server.poll:
            self._server.poll.began()
        answer.add_done_callback(partial(self._ended, request_id))

    def _asked(self, frame: Frame) -> Coroutine[Any, Any, bytes] | asyncio.Future[bytes]:
        if frame.kind is Kind.STATISTICS:
            return self._server.statistics()
        if self._server.is_draining:
            raise NotReadyError("this replica is draining; send the request to another one")
        return self._server.infer(decode_infer(frame))

    def _ended(self, request_id: int, answer: asyncio.Future[bytes]) -> None:
        """Sends what became of a request, unless it was cancelled."""
        del self.answers[request_id]
        if self._server.poll:
            self._server.poll.ended()
        if answer.cancelled():
            return
        if error := answer.exception():
            self._send_failure(request_id, error)
        else:
            self.send(Kind.OK, request_id, b"", answer.result())

    def _send_failure(self, request_id: int, error: BaseException) -> None:
        if not isinstance(error, SmeltError):
            logger.error("request %d failed: unexpected error", request_id, exc_info=error)
            error = SmeltError("internal error; see the replica's log")
        self.send(Kind.ERROR, request_id, *encode_error(error))

    def pause_writing(self) -> None:
        """A gateway that does not read answers may not send requests either."""
        super().pause_writing()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The gateway has caught up."""
        super().resume_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def closed(self, error: Exception | None) -> None:
        """No gateway waits for the answers any more."""
        if error is not None:
            logger.info("gateway connection lost: %s", error)
        self._register.discard(self)
        self._cancel_timer()
        # What still runs keeps its own hold of what it reads.
        self._lent = None
        for answer in list(self.answers.values()):
            answer.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    def _cancel_timer(self) -> None:
        if self._hello_timer:
            self._hello_timer.cancel()
