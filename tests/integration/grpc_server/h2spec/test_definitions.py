"""h2spec's cases of RFC 9113, sections 6 and 7: each kind of frame, and codes of errors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting

from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.h2spec.conversations import (
    ANSWERED,
    BEGUN,
    BLOCK,
    BODY,
    CLOSED,
    FLOW,
    HALF,
    LIVES,
    MALFORMED,
    OPEN,
    PRIORITY,
    PROTOCOL,
    SIZE,
    End,
    Row,
    continuation,
    conversations,
    converse,
    on_stream,
)

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


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


@conversations("http2", definitions(), control())
async def test_a_frame_by_its_definition(host: "Host", sent: bytes, end: End) -> None:
    await converse(host, sent, end)
