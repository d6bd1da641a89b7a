"""One end of a frame connection on asyncio: what gateway and replica share.

Reads into the decoder's buffers, writes whole frames, knows when the peer does not keep up,
and closes a connection whose bytes are not frames. Works on asyncio and uvloop alike.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from typing import NamedTuple, cast

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.transport.frame_decoder import FrameDecoder
from services.contracts.transport.frames import (
    CONNECTION_ID,
    MAX_PAYLOAD_BYTES,
    NO_TOKEN,
    Frame,
    Kind,
    Payload,
    decode_hello,
    encode_error,
    encode_hello,
    header,
)

logger = logging.getLogger(__name__)

# An unknown peer may not make us reserve memory: until HELLO only a small frame is taken.
_HELLO_PAYLOAD_BYTES = 4096
# Several large requests may wait in the transport before a writer has to.
_WRITE_HIGH_BYTES = 4 * 1024 * 1024
# Below this, copying parts together is cheaper than handing them to the kernel apart.
_JOIN_BYTES = 65_536
# As much of small frames is written at once, without waiting for the end of the loop's turn.
_TURN_BYTES = 262_144
# What the kernel keeps for a peer on this host. Its own 208 KiB make an image-sized frame three
# writes and three reads, each of which waits for the other end: a fifth of such a request's
# processor time. No more than net.core.wmem_max is given.
_UNIX_SEND_BYTES = 2 * 1024 * 1024
# Linux takes 108 bytes, the last of which ends the string.
_MAX_UNIX_PATH_BYTES = 107
# How long a peer may take to read why it was refused.
_REFUSAL_LINGER_S = 1.0


_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 4),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 10_000),
)
# Of Linux's struct tcp_info: tcpi_bytes_acked and tcpi_notsent_bytes.
_TCP_INFO = struct.Struct("=120xQ16xI")


class Traffic(NamedTuple):
    """What a connection has moved so far.

    Attributes:
        num_received: bytes that came.
        num_sent: bytes that left for the peer; by TCP, that it acknowledged.
        num_waiting: bytes that are written and cannot leave yet.
    """

    num_received: int
    num_sent: int
    num_waiting: int

    def has_progressed_since(self, before: "Traffic") -> bool:
        """Whether the peer must have read or written since then.

        What left proves that only where it had to wait: the kernel takes a few megabytes for a
        peer that stands still, too.
        """
        has_room = before.num_waiting > 0 and self.num_sent > before.num_sent
        return has_room or self.num_received > before.num_received


class FrameProtocol(asyncio.BufferedProtocol):
    """Base of both ends; a subclass implements the meaning of frames.

    Attributes:
        is_open: HELLO went both ways and the connection is up.
        max_payload_bytes: larger frames are refused.
    """

    max_payload_bytes = MAX_PAYLOAD_BYTES

    def __init__(self, *, token: bytes = NO_TOKEN) -> None:
        """Take this end's HELLO."""
        self.is_open = False
        self._token = token
        self._decoder = FrameDecoder(_HELLO_PAYLOAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._writers: deque[asyncio.Future[None]] = deque()
        # Small frames of this turn of the event loop, which leave together at its end.
        self._unsent: list[Payload] = []
        self._num_unsent_bytes = 0
        self._num_written = self._num_received = 0
        self._loop = asyncio.get_running_loop()
        # asyncio's own writelines copies, and in CPython 3.12.0 to 3.12.8 never pauses a writer.
        self._gathers = not isinstance(self._loop, asyncio.BaseEventLoop)

    def send_hello(self) -> None:
        """Writes this end's HELLO: at once by the end that dials, in answer by the other."""
        self.send(Kind.HELLO, CONNECTION_ID, encode_hello(self._token))

    def opened(self) -> None:
        """Called once, when the peer's HELLO was accepted."""

    def frame_received(self, frame: Frame) -> None:
        """Take a frame after HELLO; raises InvalidRequestError, which ends the connection."""
        raise InvalidRequestError(
            f"data port: frame kind {frame.kind.name} is not accepted from this peer"
        )

    def closed(self, error: Exception | None) -> None:
        """Called once, when the connection is gone, for whatever reason."""

    def check_token(self, token: bytes) -> None:
        """Refuses a peer by its token; this end takes any."""

    def send(self, kind: Kind, request_id: int, meta: bytes = b"", payload: Payload = b"") -> None:
        """Write one frame; dropped when the connection is closed.

        Args:
            kind: of the frame.
            request_id: the gateway's; `CONNECTION_ID` for frames of the connection itself.
            meta: at most `MAX_META_BYTES`; its content depends on the kind.
            payload: of any size; not copied unless small.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        head = header(kind, request_id, len(meta), len(payload)) + meta
        if self._unsent or self.expects_more():
            if not self._unsent:
                # A system call for each frame, and one at the peer to read it, would cost more
                # than the frame itself: a batch's answers are all sent within one turn.
                self._loop.call_soon(self._end_turn)
            self._unsent.append(head)
            if len(payload) < _JOIN_BYTES:
                self._unsent.append(payload)
                self._num_unsent_bytes += len(payload)
                if self._num_unsent_bytes < _TURN_BYTES and self.expects_more():
                    return
                payload = b""
            self._write_unsent(transport, payload)
        else:
            self._write(transport, head, payload)
        self._wake_next_writer()

    def expects_more(self) -> bool:
        """Whether further frames may be sent in this turn of the loop: small ones wait for them."""
        return False

    def _end_turn(self) -> None:
        transport = self._transport
        if self._unsent and transport is not None and not transport.is_closing():
            self._write_unsent(transport)
            self._wake_next_writer()

    def _write_unsent(self, transport: asyncio.Transport, large: Payload = b"") -> None:
        parts = self._unsent
        self._unsent = []
        self._num_unsent_bytes = 0
        self._write(transport, b"".join(parts), large)

    def _write(self, transport: asyncio.Transport, head: bytes, payload: Payload) -> None:
        self._num_written += len(head) + len(payload)
        if len(payload) < _JOIN_BYTES:
            transport.write(head + payload if payload else head)
        elif self._gathers:
            # One system call, and one of the peer's to read it.
            transport.writelines((head, payload))
        else:
            transport.write(head)
            transport.write(payload)

    def _wake_next_writer(self) -> None:
        if self._writers and not self._is_paused:
            self._wake_writer()

    def refuse(self, error: SmeltError) -> None:
        """Sends the peer an ERROR with the reason, then closes."""
        logger.warning("data connection refused: %s", error)
        self.send(Kind.ERROR, CONNECTION_ID, *encode_error(error))
        self.close()
        if self._transport is not None:
            asyncio.get_running_loop().call_later(_REFUSAL_LINGER_S, self._transport.abort)

    async def writable(self) -> None:
        """Wait while the peer is too slow for what is already written."""
        while self._is_paused:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._wake_writer()
                raise

    def _wake_writer(self) -> None:
        while self._writers:
            turn = self._writers.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def traffic(self) -> Traffic:
        """What has moved so far; nothing once the connection is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return Traffic(0, 0, 0)
        num_waiting = transport.get_write_buffer_size()
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            num_sent = self._num_written - num_waiting
        else:
            # TLS has a transport of its own beneath, into whose buffer we do not see.
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            num_sent, num_unsent = _TCP_INFO.unpack(info)
            num_waiting += num_unsent
        return Traffic(self._num_received, num_sent, num_waiting)

    def close(self) -> None:
        """Closes after what is written has gone out."""
        self._end_turn()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once; what is written may be lost."""
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        _tune(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the decoder knows better
        """Where the transport reads into."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Hands on whole frames; refuses a peer that sends anything else."""
        self._num_received += nbytes
        try:
            for frame in self._decoder.advance(nbytes):
                if self.is_open:
                    self.frame_received(frame)
                else:
                    self._greeted(frame)
        except SmeltError as error:
            self.refuse(error)

    def _greeted(self, frame: Frame) -> None:
        if frame.kind is Kind.ERROR:
            # A peer that refuses this end may close before its HELLO.
            self.frame_received(frame)
            return
        self.check_token(decode_hello(frame))
        self._decoder.max_payload_bytes = self.max_payload_bytes
        self.is_open = True
        self.opened()

    def pause_writing(self) -> None:
        """The peer does not keep up."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._is_paused = False
        self._wake_writer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wakes writers and calls the subclass."""
        self.is_open = self._is_paused = False
        while self._writers:
            self._wake_writer()
        self.closed(exc)


def _tune(connection: socket.socket) -> None:
    """Lets the kernel give up on a host that vanished without a word, within about ten seconds.

    A unix socket has no such host, but a buffer whose size the kernel never adapts.
    """
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_SEND_BYTES)
    elif connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def parse_address(address: str) -> tuple[str, int] | str:
    """`host:port` as a pair, `unix:/path` as the path.

    Raises:
        InvalidRequestError: it is neither.
    """
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path.startswith("/") or len(path.encode()) > _MAX_UNIX_PATH_BYTES:
            raise InvalidRequestError(
                f"address '{address}': wanted unix:/absolute/path of at most "
                f"{_MAX_UNIX_PATH_BYTES} bytes; choose a shorter socket folder"
            )
        return path
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidRequestError(f"address '{address}': wanted host:port or unix:/absolute/path")
    return host.removeprefix("[").removesuffix("]"), int(port)
