"""h2spec's cases of RFC 9113, section 8: malformed requests, and what clients may not send."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.h2spec.conversations import (
    BLOCK,
    MALFORMED,
    OPEN,
    PROTOCOL,
    End,
    Row,
    conversations,
    converse,
    more,
    with_fields,
    without,
)

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


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


@conversations("http2", messages())
async def test_a_malformed_request(host: "Host", sent: bytes, end: End) -> None:
    await converse(host, sent, end)
