"""A client that sends what bytes it likes, and reads with a parser that is not ours."""

import asyncio
import itertools
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hpack import Decoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.integration.grpc_server.frames import (
    ACK,
    PING,
    SETTINGS,
    Fields,
    call,
    frame,
    greeting,
)
from tests.integration.grpc_server.probe import LIMIT_S, soon


@dataclass
class Answer:
    """What came on a stream.

    Attributes:
        heads: the header blocks, decoded: headers and trailers, or trailers alone.
        sizes: of the DATA frames, with padding.
        reset: the code of RST_STREAM.
    """

    heads: list[Fields] = field(default_factory=list)
    data: bytes = b""
    sizes: list[int] = field(default_factory=list)
    is_ended: bool = False
    reset: int | None = None
    credit: int = 0

    @property
    def head(self) -> dict[str, str]:
        """The first block's fields."""
        return dict(self.heads[0]) if self.heads else {}

    @property
    def trailers(self) -> dict[str, str]:
        """The last block's fields."""
        return dict(self.heads[-1]) if self.heads else {}

    @property
    def status(self) -> int | None:
        """The status in gRPC's sense."""
        text = self.trailers.get("grpc-status")
        return None if text is None else int(text)

    @property
    def messages(self) -> list[bytes]:
        """The whole gRPC messages."""
        found, rest = [], self.data
        while len(rest) >= 5 and len(rest) >= 5 + (size := int.from_bytes(rest[1:5], "big")):
            found.append(rest[5 : 5 + size])
            rest = rest[5 + size :]
        return found


class RawClient:
    """One connection; frames are read only while a test waits for something.

    Attributes:
        frames: all that came, oldest first.
        goaways: the codes of GOAWAY.
        pongs: what came back of our PINGs.
        is_closed: the server has closed the connection.
        is_polite: SETTINGS and PING are acknowledged as they are read.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[Frame] = []
        self.goaways: list[int] = []
        self.pongs: list[bytes] = []
        self.is_closed = False
        self.is_polite = True
        self.settings: dict[int, int] = {}
        self.connection_credit = 0
        self._socket, self._buffer = sock, b""
        self._answers: dict[int, Answer] = {}
        self._decoder, self._block = Decoder(), b""
        self._sending = asyncio.Lock()
        self._num_pings = 0

    def keep_table(self, num_bytes: int) -> None:
        """Take no block of a server that does not say that it keeps to a table of this size."""
        self._decoder.max_allowed_table_size = num_bytes

    @classmethod
    async def dial(cls, port: int, first: bytes | None = None) -> "RawClient":
        """Connects and sends the first bytes: a plain greeting, if not told."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        client = cls(sock)
        await client.send(greeting() if first is None else first)
        return client

    async def send(self, *parts: bytes) -> None:
        """Sends; a server that has hung up is seen when reading."""
        await self.send_in_pieces(b"".join(parts), (1 << 30,))

    async def send_in_pieces(self, sent: bytes, cuts: Iterable[int]) -> None:
        """Sends, and lets the server read after each of so many bytes; goes round for more."""
        sizes, begin, loop = itertools.cycle(cuts), 0, asyncio.get_running_loop()
        # Acknowledgements wait: they may not stand within another frame.
        async with self._sending:
            while begin < len(sent):
                end = begin + next(sizes)
                with suppress(ConnectionError):
                    await loop.sock_sendall(self._socket, memoryview(sent)[begin:end])
                await asyncio.sleep(0)
                begin = end

    def hang_up(self) -> None:
        """Sends no more, and reads on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def say_and_leave(self, said: bytes) -> None:
        """Send and close before the server's loop, which is also ours, reads any of it."""
        with suppress(BlockingIOError):
            while self._socket.recv(65_536):
                pass  # what is left unread would make the close a reset
        self._socket.send(said)
        self._socket.close()

    async def ask(self, *parts: bytes, stream: int = 1) -> Answer:
        """Sends, and reads until this stream has ended."""
        await self.send(*parts)
        return await self.answer(stream)

    async def goes_on(self, stream: int = 3) -> bool:
        """Whether one more call is answered."""
        return (await self.ask(call(stream, payload=b"on"), stream=stream)).messages == [b"on"]

    def seen(self, stream: int) -> Answer:
        """What has come on a stream as yet."""
        return self._answers.setdefault(stream, Answer())

    async def answer(self, stream: int = 1) -> Answer:
        """A stream's answer, once it has ended."""
        answer = self.seen(stream)
        await self.until(lambda: answer.is_ended or answer.reset is not None)
        return answer

    async def rest(self) -> bytes:
        """All that comes until the server closes, where it need not be frames."""
        parts = [self._buffer]
        while piece := await soon(self.receive()):
            parts.append(piece)
        return b"".join(parts)

    async def goaway(self) -> int | None:
        """The code with which the server has closed; None when it said nothing."""
        await self.until(lambda: self.is_closed)
        return self.goaways[-1] if self.goaways else None

    async def settled(self) -> None:
        """Return once the server has seen what was sent before, and its handlers have run on."""
        # Frames that came together are read before any handler runs: one PING is too quick.
        for _ in range(3):
            await self.ping()

    async def ping(self) -> None:
        """Return once the server has answered a PING."""
        self._num_pings += 1
        token = self._num_pings.to_bytes(8, "big")
        await self.send(frame(PING, payload=token))
        await self.until(lambda: token in self.pongs)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Reads until it is so.

        Raises:
            ConnectionError: the server has closed and it never was.
            TimeoutError: nothing came for far too long.
        """
        while not is_so():
            if self.is_closed:
                raise ConnectionError(f"the server has closed, GOAWAY {self.goaways}")
            async with asyncio.timeout(LIMIT_S):
                await self.read()

    async def read(self) -> None:
        """Takes one piece off the socket."""
        piece = await self.receive()
        self.is_closed = not piece
        self._buffer += piece
        while len(self._buffer) >= 9:
            head = memoryview(self._buffer[:9])
            each, size = Frame.parse_frame_header(head, strict=True)
            if len(self._buffer) < 9 + size:
                break
            each.parse_body(memoryview(self._buffer)[9 : 9 + size])
            self._buffer = self._buffer[9 + size :]
            await self._take(each)

    async def receive(self) -> bytes:
        """What comes next, in bytes; none when the server has closed."""
        try:
            piece = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        except ConnectionError:
            return b""
        if not piece:
            self.hang_up()  # as clients do: the server waits for it a while
        return piece

    async def _take(self, each: Frame) -> None:
        self.frames.append(each)
        answer = self.seen(each.stream_id)
        if isinstance(each, HeadersFrame | ContinuationFrame):
            self._take_block(each, answer)
        elif isinstance(each, DataFrame):
            answer.data += each.data
            answer.sizes.append(each.flow_controlled_length)
        elif isinstance(each, RstStreamFrame):
            answer.reset = each.error_code
        elif isinstance(each, WindowUpdateFrame):
            answer.credit += each.window_increment
        elif isinstance(each, GoAwayFrame):
            self.goaways.append(each.error_code)
        elif isinstance(each, PingFrame) and "ACK" in each.flags:
            self.pongs.append(each.opaque_data)
        elif isinstance(each, SettingsFrame | PingFrame) and "ACK" not in each.flags:
            await self._acknowledge(each)
        answer.is_ended |= "END_STREAM" in each.flags

    def _take_block(self, each: HeadersFrame | ContinuationFrame, answer: Answer) -> None:
        self._block += each.data
        if "END_HEADERS" in each.flags:
            answer.heads.append([(str(k), str(v)) for k, v in self._decoder.decode(self._block)])
            self._block = b""

    async def _acknowledge(self, each: SettingsFrame | PingFrame) -> None:
        if isinstance(each, SettingsFrame):
            self.settings |= each.settings
            reply = frame(SETTINGS, ACK)
        else:
            reply = frame(PING, ACK, payload=each.opaque_data)
        if self.is_polite:
            await self.send(reply)

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()
