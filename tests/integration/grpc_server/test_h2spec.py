"""Each requirement that h2spec names, by the number of its case, with requests made gRPC's.

Rows say what a client sends and how that ends. Left out is http2/5.3.1: RFC 9113 has no
dependencies between streams. Where h2spec takes an error of the stream or of the connection,
rows say which it is here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting
from hyperframe.frame import GoAwayFrame, SettingsFrame

from services.grpc_server.limits import FRAME_BYTES, Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

# How a conversation ends: the server lives on; stream 1 is answered; or it, or all, is closed.
LIVES, ANSWERED = "lives", "answered"
End = str | tuple[str, Error]
Row = tuple[str, bytes, End]


def on_stream(code: Error) -> End:
    return "stream", code


def on_connection(code: Error) -> End:
    return "connection", code


PROTOCOL, CLOSED = on_connection(Error.PROTOCOL_ERROR), on_stream(Error.STREAM_CLOSED)
SIZE, COMPRESSION = (
    on_connection(Error.FRAME_SIZE_ERROR),
    on_connection(Error.COMPRESSION_ERROR),
)
FLOW, MALFORMED = on_connection(Error.FLOW_CONTROL_ERROR), on_stream(Error.PROTOCOL_ERROR)

BLOCK: Final = f.plain(f.request_fields())
BODY: Final = f.body(1, f.message(b"test"))
CALL: Final = f.call(1, payload=b"test")
# Calls whose handler waits: open, and half-closed (remote).
OPEN: Final = f.headers(1, f.request_fields("Gated"))
HALF: Final = f.headers(1, f.request_fields("Gated"), is_last=True)
BEGUN: Final = f.frame(f.HEADERS, 0, 1, BLOCK)
MORE: Final = f.plain([("x-dummy", "ok")])
PING: Final = f.frame(f.PING, payload=bytes(8))
PRIORITY: Final = f.frame(f.PRIORITY, 0, 1, bytes(4) + b"\xff")
UNKNOWN: Final = f.frame(0x16, payload=bytes(8))
NO_WINDOW: Final = f.settings({Setting.INITIAL_WINDOW_SIZE: 0})
WINDOW: Final = f.settings({Setting.INITIAL_WINDOW_SIZE: 65_535})


def continuation(stream: int, flags: int = f.END_HEADERS) -> bytes:
    return f.frame(f.CONTINUATION, flags, stream, MORE)


def with_block(block: bytes) -> bytes:
    """A call whose header block is made by hand."""
    return f.frame(f.HEADERS, f.END_HEADERS, 1, block) + BODY


def with_fields(fields: f.Fields) -> bytes:
    return f.headers(1, fields) + BODY


def without(name: str) -> bytes:
    return with_fields([field for field in f.request_fields() if field[0] != name])


def more(*fields: tuple[str, str]) -> bytes:
    return with_fields([*f.request_fields(), *fields])


def frames() -> Iterator[Row]:
    """generic/1 to 3: what has to be taken."""
    yield "1/1", b"", LIVES
    yield "2/1", PRIORITY, LIVES
    yield "2/2", NO_WINDOW + CALL + f.window_update(1, 99) + WINDOW, ANSWERED
    yield "2/3", NO_WINDOW + CALL + PRIORITY + f.window_update(1, 99) + WINDOW, ANSWERED
    yield "2/4", HALF + f.rst_stream(1), LIVES
    yield "3.1/1", CALL, ANSWERED
    yield "3.1/2", f.headers(1) + f.body(1, f.message(b"test"), size=4), ANSWERED
    padded = f.frame(f.DATA, f.PADDED | f.END_STREAM, 1, b"\x06" + f.message(b"test") + b"padded")
    yield "3.1/3", f.headers(1) + padded, ANSWERED
    yield "3.2/1", CALL, ANSWERED
    flags = f.END_HEADERS | f.PADDED
    yield "3.2/2", f.frame(f.HEADERS, flags, 1, b"\x08" + BLOCK + bytes(8)) + BODY, ANSWERED
    flags = f.END_HEADERS | f.HAS_PRIORITY
    yield "3.2/3", f.frame(f.HEADERS, flags, 1, PRIORITY[-5:] + BLOCK) + BODY, ANSWERED
    for number, (stream, payload) in enumerate(
        (
            (1, bytes(5)),
            (1, bytes(4) + b"\xff"),
            (3, b"\x00\x00\x00\x01\x00"),
            (1, b"\x80\x00\x00\x00\x00"),
            (3, bytes(4) + b"\xff"),
        ),
        start=1,
    ):
        yield f"3.3/{number}", f.frame(f.PRIORITY, 0, stream, payload) + CALL, ANSWERED
    yield "3.4/1", OPEN + f.rst_stream(1), LIVES
    every = dict.fromkeys((Setting.MAX_CONCURRENT_STREAMS, Setting.MAX_HEADER_LIST_SIZE), 100)
    every |= {Setting.HEADER_TABLE_SIZE: 4096, Setting.ENABLE_PUSH: 1}
    every |= {Setting.INITIAL_WINDOW_SIZE: 65_535, Setting.MAX_FRAME_SIZE: 16_384}
    yield "3.5/1", f.settings(every) + CALL, ANSWERED
    yield "3.7/1", PING, LIVES
    yield "3.8/1", f.frame(f.GOAWAY, payload=bytes(8)), LIVES
    yield "3.9/1", f.window_update(0, 1), LIVES
    yield "3.9/2", f.headers(1) + f.window_update(1, 1) + BODY, ANSWERED
    yield "3.10/1", BEGUN + continuation(1) + BODY, ANSWERED
    yield "3.10/2", BEGUN + continuation(1, 0) + continuation(1) + BODY, ANSWERED


def exchanges() -> Iterator[Row]:
    """generic/4 and 5: requests, and each representation of a field."""
    for number, method in enumerate(("GET", "HEAD", "POST"), start=1):
        fields = [(":method", method), *f.request_fields()[1:]]
        yield f"4/{number}", with_fields(fields), ANSWERED
    trailers = f.headers(1, [("x-test", "ok")], is_last=True)
    yield "4/4", f.headers(1) + f.body(1, f.message(b""), is_last=False) + trailers, ANSWERED
    agent, test = b"\x0auser-agent\x06h2spec", b"\x06x-test\x06h2spec"
    packed_agent = bytes.fromhex("87b505b161cc5a93849c48aca4")
    packed_test = bytes.fromhex("85f2b24a84ff849c48aca4")
    yield "5/1", with_block(BLOCK + b"\xba"), ANSWERED
    literals = [first + field for first in (b"\x40", b"\x00", b"\x10")
                for field in (agent, packed_agent, test, packed_test)]  # fmt: skip
    for number, literal in enumerate(literals, start=2):
        yield f"5/{number}", with_block(BLOCK + literal), ANSWERED
    yield "5/14", with_block(b"\x20" + BLOCK), ANSWERED
    yield "5/15", with_block(b"\x20\x3f\xe1\x1f" + BLOCK), ANSWERED


def compression() -> Iterator[Row]:
    """hpack: what cannot be decoded."""
    yield "2.3.3/1", with_block(BLOCK + b"\xfe"), COMPRESSION
    yield "2.3.3/2", with_block(BLOCK + b"\x7e\x04test"), COMPRESSION
    yield "4.2/1", with_block(BLOCK + b"\x21"), COMPRESSION
    wrong = ("84ff8449509fff", "84ff83495090", "87fffffffd25427f")
    for number, value in enumerate(wrong, start=1):
        block = BLOCK + bytes.fromhex("0085f2b24a" + value)
        yield f"5.2/{number}", with_block(block), COMPRESSION
    yield "6.1/1", with_block(BLOCK + b"\x80"), COMPRESSION
    yield "6.3/1", with_block(b"\x3f\xe2\x1f" + BLOCK), COMPRESSION


def streams() -> Iterator[Row]:
    """http2/4 and 5: frames, and the states of streams."""
    yield "4.1/1", UNKNOWN, LIVES
    yield "4.1/2", f.frame(f.PING, 0x16, payload=bytes(8)), LIVES
    yield "4.1/3", f.frame(f.PING, 0, 1 << 31, bytes(8)), LIVES
    yield "4.2/1", f.headers(1) + f.data(1, f.message(bytes(16_379)), is_last=True), ANSWERED
    yield "4.2/2", OPEN + f.data(1, bytes(FRAME_BYTES + 1)), SIZE
    yield "4.2/3", f.frame(f.HEADERS, f.END_HEADERS, 1, bytes(FRAME_BYTES + 1)), SIZE
    yield "4.3/1", f.frame(f.HEADERS, f.END_HEADERS, 1, b"\x40"), COMPRESSION
    yield "4.3/2", BEGUN + PRIORITY + continuation(1), PROTOCOL
    yield "4.3/3", BEGUN + f.headers(3) + continuation(1), PROTOCOL
    yield "5.1/1", f.data(1, b"test"), PROTOCOL
    yield "5.1/2", f.rst_stream(1), PROTOCOL
    yield "5.1/3", f.window_update(1, 100), PROTOCOL
    yield "5.1/4", continuation(1), PROTOCOL
    yield "5.1/5", HALF + f.data(1, b"test"), CLOSED
    yield "5.1/6", HALF + f.headers(1, is_last=True), CLOSED
    yield "5.1/7", HALF + continuation(1), PROTOCOL
    reset = OPEN + f.rst_stream(1)
    yield "5.1/8", reset + f.data(1, b"test"), CLOSED
    yield "5.1/9", reset + f.headers(1), on_connection(Error.STREAM_CLOSED)
    yield "5.1/10", reset + continuation(1), PROTOCOL
    yield "5.1.1/1", f.headers(2), PROTOCOL
    # A lower stream that was never open is closed, as one that was; h2spec wants PROTOCOL_ERROR.
    yield "5.1.1/2", f.headers(5) + f.headers(3), on_connection(Error.STREAM_CLOSED)
    yield "5.1.1/3", HALF + f.headers(1, is_last=True), CLOSED
    yield "5.4.1/1", f.frame(f.PING, 0, 3, bytes(8)), PROTOCOL
    yield "5.5/1", UNKNOWN, LIVES
    yield "5.5/2", BEGUN + UNKNOWN, PROTOCOL


def definitions() -> Iterator[Row]:
    """http2/6.1 to 6.5."""
    yield "6.1/1", f.data(0, b"test"), PROTOCOL
    yield "6.1/2", HALF + f.data(1, b"test"), CLOSED
    yield "6.1/3", OPEN + f.frame(f.DATA, f.PADDED, 1, b"\x06test"), PROTOCOL
    yield "6.2/1", BEGUN + PRIORITY + continuation(1), PROTOCOL
    yield "6.2/2", BEGUN + f.headers(3), PROTOCOL
    yield "6.2/3", f.headers(0), PROTOCOL
    padded = bytes([len(BLOCK) + 2]) + BLOCK
    yield "6.2/4", f.frame(f.HEADERS, f.END_HEADERS | f.PADDED, 1, padded), PROTOCOL
    yield "6.3/1", f.frame(f.PRIORITY, 0, 0, bytes(5)), PROTOCOL
    yield "6.3/2", OPEN + f.frame(f.PRIORITY, 0, 1, bytes(4)), SIZE
    yield "6.4/1", f.rst_stream(0), PROTOCOL
    yield "6.4/2", f.rst_stream(1), PROTOCOL
    yield "6.4/3", OPEN + f.frame(f.RST_STREAM, 0, 1, bytes(3)), SIZE
    yield "6.5/1", f.frame(f.SETTINGS, f.ACK, 0, b"\x00"), SIZE
    yield "6.5/2", f.frame(f.SETTINGS, 0, 1, b"\x00\x03\x00\x00\x00\x64"), PROTOCOL
    yield "6.5/3", f.frame(f.SETTINGS, 0, 0, bytes(8)), SIZE
    yield "6.5.2/1", f.settings({Setting.ENABLE_PUSH: 2}), PROTOCOL
    yield "6.5.2/2", f.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), FLOW
    yield "6.5.2/3", f.settings({Setting.MAX_FRAME_SIZE: 16_383}), PROTOCOL
    yield "6.5.2/4", f.settings({Setting.MAX_FRAME_SIZE: 1 << 24}), PROTOCOL
    yield "6.5.2/5", f.settings({0xFF: 1}), LIVES


def control() -> Iterator[Row]:
    """http2/6.7 to 7."""
    yield "6.7/3", f.frame(f.PING, 0, 1, bytes(8)), PROTOCOL
    yield "6.7/4", f.frame(f.PING, 0, 0, bytes(6)), SIZE
    yield "6.8/1", f.frame(f.GOAWAY, 0, 1, bytes(8)), PROTOCOL
    yield "6.9/1", f.window_update(0, 0), PROTOCOL
    yield "6.9/2", OPEN + f.window_update(1, 0), MALFORMED
    yield "6.9/3", f.frame(f.WINDOW_UPDATE, 0, 0, bytes(3)), SIZE
    yield "6.9.1/2", f.window_update(0, f.MAX_WINDOW) * 2, FLOW
    overflow = on_stream(Error.FLOW_CONTROL_ERROR)
    yield "6.9.1/3", OPEN + f.window_update(1, f.MAX_WINDOW) * 2, overflow
    yield "6.9.2/3", f.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), FLOW
    yield "6.10/1", BEGUN + continuation(1, 0) + continuation(1) + BODY, ANSWERED
    yield "6.10/2", BEGUN + continuation(1, 0) + f.data(1, b"test"), PROTOCOL
    yield "6.10/3", BEGUN + continuation(0), PROTOCOL
    yield "6.10/4", OPEN + continuation(1), PROTOCOL
    yield "6.10/5", BEGUN + continuation(1) * 2, PROTOCOL
    yield "6.10/6", BEGUN + f.data(1, b"test") + continuation(1), PROTOCOL
    yield "7/1", f.frame(f.GOAWAY, payload=bytes(7) + b"\xff"), LIVES
    yield "7/2", OPEN + f.rst_stream(1, 0xFF), LIVES


def messages() -> Iterator[Row]:
    """http2/8: malformed requests, and what clients may not send."""
    data = f.body(1, f.message(b"test"), is_last=False)
    yield "8.1/1", OPEN + data + f.headers(1, [("x-test", "ok")]), MALFORMED
    yield "8.1.2/1", more(("X-TEST", "ok")), MALFORMED
    yield "8.1.2.1/1", with_fields([(":test", "ok"), *f.request_fields()]), MALFORMED
    yield "8.1.2.1/2", with_fields([(":status", "200"), *f.request_fields()]), MALFORMED
    yield "8.1.2.1/3", OPEN + data + f.headers(1, [(":method", "POST")], is_last=True), MALFORMED
    yield "8.1.2.1/4", with_fields([("x-test", "ok"), *f.request_fields()]), MALFORMED
    yield "8.1.2.2/1", more(("connection", "keep-alive")), MALFORMED
    yield "8.1.2.2/2", more(("te", "trailers, deflate")), MALFORMED
    empty = [(name, "" if name == ":path" else value) for name, value in f.request_fields()]
    yield "8.1.2.3/1", with_fields(empty), MALFORMED
    pseudo = (":method", ":scheme", ":path")
    for number, name in enumerate(pseudo, start=2):
        yield f"8.1.2.3/{number}", without(name), MALFORMED
    for number, name in enumerate(pseudo, start=5):
        twice = [(name, dict(f.request_fields())[name]), *f.request_fields()]
        yield f"8.1.2.3/{number}", with_fields(twice), MALFORMED
    length = f.headers(1, [*f.request_fields("Gated"), ("content-length", "1")])
    yield "8.1.2.6/1", length + f.data(1, b"test", is_last=True), MALFORMED
    yield "8.1.2.6/2", length + f.data(1, b"t") + f.data(1, b"est", is_last=True), MALFORMED
    promise = f.frame(f.PUSH_PROMISE, f.END_HEADERS, 1, b"\x00\x00\x00\x03" + BLOCK)
    yield "8.2/1", OPEN + promise, PROTOCOL


ROWS = [
    (f"{chapter}/{number}", sent, end)
    for chapter, group in (
        ("generic", frames),
        ("generic", exchanges),
        ("hpack", compression),
        ("http2", streams),
        ("http2", definitions),
        ("http2", control),
        ("http2", messages),
    )
    for number, sent, end in group()
]


async def check(client: "RawClient", sent: bytes, end: End) -> None:
    """A conversation ends so, and its connection goes on unless it was closed."""
    await client.send(sent)
    if end == ANSWERED:
        answer = await client.answer()
        assert answer.head[":status"] in ("200", "405")
        assert answer.reset in (None, Error.NO_ERROR)
    elif end[0] == "connection":
        # With GOAWAY, and then the connection is closed (http2/5.4.1).
        assert await client.goaway() == end[1]
        assert isinstance(client.frames[-1], GoAwayFrame)
        return
    elif end != LIVES:
        await client.until(lambda: client.seen(1).reset == end[1])
    assert await client.goes_on(7)
    assert not client.goaways


@pytest.mark.parametrize(("sent", "end"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_a_conversation(host: "Host", sent: bytes, end: End) -> None:
    await host.serve()
    other = await host.dial()
    await check(await host.dial(), sent, end)
    if not host.probe.began.empty():
        assert await soon(host.probe.ended.get()) == "cancelled"
    assert await other.goes_on()


@pytest.mark.parametrize(
    ("late", "end"),
    [
        (PRIORITY, LIVES),
        (f.data(1, b"test"), CLOSED),
        (f.headers(1), on_connection(Error.STREAM_CLOSED)),
        (continuation(1), PROTOCOL),
    ],
    ids=["generic/2/5", "http2/5.1/11", "http2/5.1/12", "http2/5.1/13"],
)
async def test_a_stream_that_is_closed(host: "Host", late: bytes, end: End) -> None:
    await host.serve()
    client = await host.dial()
    await client.ask(CALL)
    await check(client, late, end)


async def test_the_first_frame_of_the_server_is_settings(host: "Host") -> None:
    """http2/3.5/1, 6.5.3/2 and 6.7/1: and it acknowledges the client's, and each PING."""
    await host.serve()
    client = await host.dial()
    await client.ping()
    settings = [each for each in client.frames if isinstance(each, SettingsFrame)]
    assert client.frames[0] is settings[0]
    assert ["ACK" in each.flags for each in settings] == [False, True]


async def test_another_preface_is_not_answered_by_frames(host: "Host") -> None:
    """http2/3.5/2."""
    await host.serve()
    client = await host.dial(b"INVALID CONNECTION PREFACE\r\n\r\n")
    assert (await client.rest())[:4] in (b"", b"HTTP")


async def test_a_ping_that_is_an_answer_is_not_answered(host: "Host") -> None:
    """http2/6.7/2."""
    await host.serve()
    client = await host.dial()
    await client.send(f.frame(f.PING, f.ACK, 0, b"\xffinvalid"[:8]))
    await client.ping()
    assert len(client.pongs) == 1


async def test_more_streams_than_were_announced(host: "Host") -> None:
    """http2/5.1.2/1."""
    await host.serve(Limits(max_streams=1))
    client = await host.dial()
    await client.send(f.call(1, "Hold"))
    assert (await client.ask(f.call(3), stream=3)).reset == Error.REFUSED_STREAM


@pytest.mark.parametrize(
    ("first", "then", "sizes"),
    [
        (f.settings({Setting.INITIAL_WINDOW_SIZE: 1}), b"", [1]),
        (NO_WINDOW, f.settings({Setting.INITIAL_WINDOW_SIZE: 1}), [1]),
        (
            f.settings({Setting.INITIAL_WINDOW_SIZE: 3}),
            f.settings({Setting.INITIAL_WINDOW_SIZE: 2}) + f.window_update(1, 2),
            [3, 1],
        ),
        (f.frame(f.SETTINGS, payload=bytes.fromhex("000400000064000400000001")), b"", [1]),
    ],
    ids=["http2/6.9.1/1", "http2/6.9.2/1", "http2/6.9.2/2", "http2/6.5.3/1"],
)
async def test_no_more_is_sent_than_windows_allow(
    host: "Host", first: bytes, then: bytes, sizes: list[int]
) -> None:
    await host.serve()
    client = await host.dial()
    await client.send(first, CALL)
    await client.settled()
    await client.send(then)
    await client.settled()
    assert client.seen(1).sizes == sizes
