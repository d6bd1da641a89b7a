"""h2spec's generic cases: frames and requests that have to be taken."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from h2.settings import SettingCodes as Setting

from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.h2spec.conversations import (
    ANSWERED,
    BEGUN,
    BLOCK,
    BODY,
    CALL,
    HALF,
    LIVES,
    NO_WINDOW,
    OPEN,
    PING,
    PRIORITY,
    WINDOW,
    End,
    Row,
    continuation,
    conversations,
    converse,
    with_block,
    with_fields,
)

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


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
    literals = [
        first + field
        for first in (b"\x40", b"\x00", b"\x10")
        for field in (agent, packed_agent, test, packed_test)
    ]
    for number, literal in enumerate(literals, start=2):
        yield f"5/{number}", with_block(BLOCK + literal), ANSWERED
    yield "5/14", with_block(b"\x20" + BLOCK), ANSWERED
    yield "5/15", with_block(b"\x20\x3f\xe1\x1f" + BLOCK), ANSWERED


@conversations("generic", frames(), exchanges())
async def test_what_has_to_be_taken(host: "Host", sent: bytes, end: End) -> None:
    await converse(host, sent, end)
