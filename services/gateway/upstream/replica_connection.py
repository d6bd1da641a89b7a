"""One multiplexed connection from a gateway to a replica.

Many requests are in flight on it at once; answers come in any order. A cancelled request
sends the replica CANCEL. When the connection is lost every request on it fails at once with
ConnectionLostError, which says whether the replica may have run it.
"""

import asyncio
import itertools
import ssl
from functools import partial
from typing import Any

from services.contracts.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    SmeltError,
)
from services.contracts.security.fleet_security import FleetTls
from services.contracts.text.durations import milliseconds
from services.contracts.transport.busy_poll import BusyPoll
from services.contracts.transport.frame_protocol import FrameProtocol, parse_address
from services.contracts.transport.frames import (
    CONNECTION_ID,
    NO_TOKEN,
    Frame,
    InferFrame,
    Kind,
    Payload,
    decode_error,
    encode_infer,
)
from services.contracts.transport.lent_memory import PLACE
from services.gateway.upstream.arena import RequestArena, slot_of
from services.gateway.upstream.arena_link import ArenaLink, lend_arena
from services.pb import open_inference_v2_pb2 as pb

# What is worth waiting for before the first request: with it that is not copied.
_LEND_PATIENCE_S = 1.0
# A peer may close its end late or never.
_TLS_SHUTDOWN_TIMEOUT_S = 1.0


class ReplicaConnection(FrameProtocol):
    """The gateway's end; make one with `connect`."""

    def __init__(
        self,
        address: str,
        *,
        token: bytes = NO_TOKEN,
        poll: BusyPoll | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            address: of the replica, for errors and logs.
            token: proves to the replica that this is a gateway of its fleet.
            poll: of this process; notes its requests.
        """
        super().__init__(token=token)
        loop = asyncio.get_running_loop()
        self._address = address
        self._ids = itertools.count(CONNECTION_ID + 1)
        self._waiting: dict[int, asyncio.Future[Payload]] = {}
        self._poll = poll
        self._ready: asyncio.Future[None] = loop.create_future()
        # The opener may have given up before it failed.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._lost: asyncio.Future[None] = loop.create_future()
        self._reason: SmeltError | None = None
        self._link: ArenaLink | None = None
        self._lending: asyncio.Task[None] | None = None

    @property
    def num_in_flight(self) -> int:
        """Requests that were sent and are not answered."""
        return len(self._waiting)

    async def infer(
        self,
        request: Payload,
        timeout_s: float | None = None,
        *,
        trace: str = "",
    ) -> Payload:
        """Sends a serialized ModelInferRequest; returns the answer's bytes, many of them as a view.

        Args:
            request: opaque here.
            timeout_s: seconds left of the client's deadline; sent to the replica too.
            trace: the caller's request id, for the replica's log.

        Raises:
            ConnectionLostError: the replica is gone; see `may_have_run`.
            DeadlineExceededError: `timeout_s` passed first.
            InvalidRequestError: the request is too large or its trace too long to be sent.
            SmeltError: what the replica answered, in its class.
        """
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineExceededError(
                "the deadline passed before the request was sent: "
                f"{milliseconds(timeout_s)} were left of it"
            )
        frame = InferFrame(request, timeout_s, trace)
        try:
            return await self._ask(Kind.INFER, encode_infer(frame), request, timeout_s)
        except TimeoutError as error:
            # No address: clients see this text.
            left = milliseconds(timeout_s or 0.0)
            raise DeadlineExceededError(
                f"no answer of a replica within the {left} that were left of the deadline"
            ) from error

    async def statistics(self) -> pb.ModelStatistics:
        """What the replica has counted; raises as `infer`."""
        answer = await self._ask(Kind.STATISTICS)
        return pb.ModelStatistics.FromString(bytes(answer))

    async def ping(self) -> None:
        """Returns when the replica's event loop has answered; raises ConnectionLostError.

        It does not wait for its turn among requests that wait until the replica keeps up.
        """
        await self._ask(Kind.PING)

    async def lend(self, arena: RequestArena) -> None:
        """Have the replica, of this host, read large requests where they lie.

        Returns once it does or refuses to; of one that takes its time, as one does that swaps its
        engine, the first requests are copied.
        """
        self._lending = self._loop.create_task(self._lend(arena), name="lend memory")
        await asyncio.wait((self._lending,), timeout=_LEND_PATIENCE_S)

    async def _lend(self, arena: RequestArena) -> None:
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        self._link = await lend_arena(arena, connection, partial(self._ask, Kind.LEND, b""))

    async def wait_lost(self) -> None:
        """Returns when the connection is gone, whichever end closed it."""
        await asyncio.shield(self._lost)

    async def wait_ready(self) -> None:
        """Returns when the replica has sent HELLO; raises what it refused us with."""
        await asyncio.shield(self._ready)

    async def _ask(
        self, kind: Kind, meta: bytes = b"", payload: Payload = b"", timeout_s: float | None = None
    ) -> Payload:
        self._check_size(payload)
        expires_s = None if timeout_s is None else self._loop.time() + timeout_s
        if self._is_paused and kind is not Kind.PING:
            async with asyncio.timeout_at(expires_s):
                await self.writable()
        if not self.is_open:
            raise self._lost_error(may_have_run=False)
        request_id = next(self._ids)
        future: asyncio.Future[Payload] = self._loop.create_future()
        self._waiting[request_id] = future
        if self._link is not None and kind is Kind.INFER:
            kind, payload = self._lent(self._link, payload)
        self.send(kind, request_id, meta, payload)
        if self._poll:
            self._poll.began()
        # A bare timer, as asyncio.timeout costs as much as all else here.
        timer = expires_s and self._loop.call_at(expires_s, self._expire, request_id)
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up(request_id)
            raise
        finally:
            if self._poll:
                self._poll.ended()
            if timer:
                timer.cancel()
            # Its error's traceback holds this frame: a cycle would keep the request's memory.
            del future

    def _lent(self, link: ArenaLink, payload: Payload) -> tuple[Kind, Payload]:
        """What goes over the wire of a request: where it lies, if the replica can look there."""
        slot = slot_of(payload)
        if slot is None or not link.lend(slot):
            return Kind.INFER, payload
        return Kind.INFER_LENT, PLACE.pack(slot.begin, slot.nbytes)

    def _expire(self, request_id: int) -> None:
        future = self._give_up(request_id)
        if future is not None and not future.done():
            future.set_exception(TimeoutError())

    def _give_up(self, request_id: int) -> asyncio.Future[Payload] | None:
        """Forgets a request that is not answered yet, and lets the replica forget it too."""
        future = self._waiting.pop(request_id, None)
        if future is not None:
            self.send(Kind.CANCEL, request_id)
        return future

    def _check_size(self, payload: Payload) -> None:
        # The replica would have to close the connection, and with it fail everyone else.
        if len(payload) > self.max_payload_bytes:
            raise InvalidRequestError(
                f"request of {len(payload)} bytes: at most {self.max_payload_bytes} bytes go to a "
                "replica in one piece; send less at once"
            )

    def _lost_error(self, *, may_have_run: bool) -> ConnectionLostError:
        why = self._reason or "it closed the connection or ended"
        return ConnectionLostError(
            f"connection to replica at {self._address} is lost: {why}", may_have_run=may_have_run
        )

    # ---- what FrameProtocol calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends HELLO."""
        super().connection_made(transport)
        self.send_hello()

    def expects_more(self) -> bool:
        """While others are unanswered: requests that were read together are sent in one turn."""
        return len(self._waiting) > 1

    def refuse(self, error: SmeltError) -> None:
        """The replica sends what no replica sends."""
        self._reason = error
        super().refuse(error)

    def opened(self) -> None:
        """The replica sent HELLO: it accepts us."""
        self._ready.set_result(None)

    def frame_received(self, frame: Frame) -> None:
        """Wakes the request that a frame answers; an answer after CANCEL has no request."""
        if frame.request_id == CONNECTION_ID and frame.kind is Kind.ERROR:
            self._reason = decode_error(frame)
            return
        if frame.kind not in (Kind.OK, Kind.ERROR, Kind.PONG):
            super().frame_received(frame)
        future = self._waiting.pop(frame.request_id, None)
        if future is None or future.done():
            return
        if frame.kind is Kind.ERROR:
            future.set_exception(decode_error(frame))
        else:
            future.set_result(frame.payload)

    def closed(self, error: Exception | None) -> None:
        """Fails everything that waits."""
        if self._lending:
            self._lending.cancel()
        if self._link:
            self._link.close()
        # One that is cancelled leads back to here, by what it was cancelled with: a cycle would
        # keep the buffers until garbage is collected.
        self._lending = self._link = None
        if self._reason is None and error is not None:
            self._reason = SmeltError(str(error))
        waiting = self._waiting
        self._waiting = {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._lost_error(may_have_run=True))
        if not self._ready.done():
            self._ready.set_exception(self._reason or self._lost_error(may_have_run=False))
        if not self._lost.done():
            self._lost.set_result(None)


async def connect(
    address: str,
    *,
    token: bytes = NO_TOKEN,
    timeout_s: float = 5.0,
    tls: FleetTls | None = None,
    arena: RequestArena | None = None,
    poll: BusyPoll | None = None,
) -> ReplicaConnection:
    """Open a connection to a replica, HELLO included.

    Args:
        address: `host:port` or `unix:/path`.
        token: of the replica; 32 zero bytes for a replica without one.
        timeout_s: for connecting and HELLO.
        tls: of TCP connections; a unix socket never has it.
        arena: memory that is shared with the replica over a unix socket, if the replica takes it.
        poll: of this process; notes the requests of this connection.

    Raises:
        ConnectionLostError: nothing listens there, nothing answers within `timeout_s`, or the
            replica refuses us: another protocol version, another token.
        InvalidRequestError: the address is malformed.
    """
    parts = parse_address(address)
    connection = ReplicaConnection(address, token=token, poll=poll)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(parts, str):
                await loop.create_unix_connection(lambda: connection, parts)
            else:
                await loop.create_connection(lambda: connection, *parts, **_tls_options(tls))
            await connection.wait_ready()
        # With a time of its own: a connection that works shall not fail without it.
        if arena is not None and isinstance(parts, str):
            await connection.lend(arena)
    except (OSError, SmeltError) as error:
        connection.abort()
        why = _why_not(error, timeout_s, is_tls=tls is not None and not isinstance(parts, str))
        raise ConnectionLostError(
            f"no connection to replica at {address}: {why}", may_have_run=False
        ) from error
    except asyncio.CancelledError:
        connection.abort()
        raise
    return connection


def _tls_options(tls: FleetTls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    # The name is sent and not checked: see FleetTls.
    return {
        "ssl": tls.client_context(),
        "server_hostname": "",
        "ssl_shutdown_timeout": _TLS_SHUTDOWN_TIMEOUT_S,
    }


def _why_not(error: Exception, timeout_s: float, *, is_tls: bool) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing was received within {timeout_s} s"
    if isinstance(error, ssl.SSLError):
        return (
            f"no TLS with it: {error}; wanted a replica with a certificate of the fleet's authority"
            " (SMELT_REPLICA_FLEET_CERT_FILE, _KEY_FILE and _CA_FILE)"
        )
    if is_tls and isinstance(error, ConnectionLostError):
        return f"{error}; see its log for whether it rejected this gateway's certificate"
    return str(error)
