"""h2spec's requirements as conversations: what a client sends, and how that ends.

Where h2spec takes an error of the stream or of the connection, rows say which it is here. Left out
is http2/5.3.1: RFC 9113 has no dependencies between streams.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pytest
from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting

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


def conversations(chapter: str, *groups: Iterable[Row]) -> pytest.MarkDecorator:
    """Parametrizes a test with the rows of a chapter, by their numbers there."""
    rows = [row for group in groups for row in group]
    ids = [f"{chapter}/{number}" for number, _, _ in rows]
    return pytest.mark.parametrize(("sent", "end"), [row[1:] for row in rows], ids=ids)


async def check(host: "Host", client: "RawClient", sent: bytes, end: End) -> None:
    """A conversation ends so, and its connection goes on unless it was closed."""
    await client.send(sent)
    if end == ANSWERED:
        answer = await client.answer()
        assert answer.head[":status"] in ("200", "405")
        assert answer.reset in (None, Error.NO_ERROR)
    elif end[0] == "connection":
        # With GOAWAY, and then the connection is closed (http2/5.4.1).
        await host.ended_by_error(client, end[1])
        return
    elif end != LIVES:
        await client.until(lambda: client.seen(1).reset == end[1])
    assert await client.goes_on(7)
    assert not client.goaways


async def converse(host: "Host", sent: bytes, end: End) -> None:
    """A conversation ends so, its handler with it, and other connections go on."""
    await host.serve()
    other = await host.dial()
    await check(host, await host.dial(), sent, end)
    if not host.probe.began.empty():
        assert await soon(host.probe.ended.get()) == "cancelled"
    assert await other.goes_on()
