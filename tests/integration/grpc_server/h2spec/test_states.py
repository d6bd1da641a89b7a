"""h2spec's cases of RFC 9113, sections 4 and 5: frames, and the states of streams."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error

from services.grpc_server.limits import FRAME_BYTES
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.h2spec.conversations import (
    ANSWERED,
    BEGUN,
    CALL,
    CLOSED,
    COMPRESSION,
    HALF,
    LIVES,
    OPEN,
    PRIORITY,
    PROTOCOL,
    SIZE,
    UNKNOWN,
    End,
    Row,
    check,
    continuation,
    conversations,
    converse,
    on_connection,
)

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


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
    yield "5.1.1/2", f.headers(5) + f.headers(3), PROTOCOL
    yield "5.1.1/3", HALF + f.headers(1, is_last=True), CLOSED
    yield "5.4.1/1", f.frame(f.PING, 0, 3, bytes(8)), PROTOCOL
    yield "5.5/1", UNKNOWN, LIVES
    yield "5.5/2", BEGUN + UNKNOWN, PROTOCOL


@conversations("http2", streams())
async def test_a_frame_in_a_state(host: "Host", sent: bytes, end: End) -> None:
    await converse(host, sent, end)


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
    await check(host, client, late, end)
