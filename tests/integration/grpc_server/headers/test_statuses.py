"""Requests that are wrong in HTTP or in gRPC, and the statuses with which they are refused."""

import gzip
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from h2.errors import ErrorCodes as Error

from services.grpc_server.limits import Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

OK, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 2, 4, 8, 12, 13
LIMITS = Limits(max_message_bytes=1000)
GZIP, DEFLATE = {"grpc_encoding": "gzip"}, {"grpc_encoding": "deflate"}


def changed(name: str, value: str | None) -> f.Fields:
    """The fields of a call, one of them changed or left out."""
    kept = [(key, value if key == name else old) for key, old in f.request_fields()]
    return [(key, text) for key, text in kept if text is not None]


def content_types(status: str, *values: str | None) -> list[Any]:
    return [(changed("content-type", value), status) for value in values]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        *[(changed(":method", name), "405") for name in ("GET", "PUT", "post", "OPTIONS", "HEAD")],
        *content_types("415", None, "", "text/html", "application/grpcish", "application/json"),
        *content_types("415", "application/grpc-web", "application/grpc-web+proto"),
        *content_types("200", "application/grpc", "application/grpc+proto"),
        *content_types("200", "application/grpc;charset=utf-8", "application/grpc+json;a=b"),
    ],
)
async def test_http_statuses(host: "Host", fields: f.Fields, status: str) -> None:
    await host.serve()
    client = await host.dial()
    answer = await client.ask(f.headers(1, fields) + f.body(1, f.message(b"x")))
    assert (answer.head[":status"], answer.is_ended) == (status, True)
    assert answer.messages == ([b"x"] if status == "200" else [])
    assert await client.goes_on()


def refused(answer: Any, status: int) -> None:
    """It came as trailers alone."""
    assert answer.status == status, answer.trailers
    assert len(answer.heads) == 1
    assert answer.head[":status"] == "200"
    assert answer.head["content-type"].startswith("application/grpc")
    assert not answer.data


WRONG_TIMEOUTS = [
    "",
    "S",
    "1",
    "10X",
    "123456789S",
    "-1S",
    "+1S",
    "1.5S",
    "1 S",
    "1SS",
    "①S",
]


@pytest.mark.parametrize("value", WRONG_TIMEOUTS)
async def test_wrong_timeouts(host: "Host", value: str) -> None:
    await host.serve()
    client = await host.dial()
    refused(await client.ask(f.call(1, grpc_timeout=value)), INTERNAL)
    assert await client.goes_on()
    assert len(host.probe.metadata) == 1


@pytest.mark.parametrize("value", ["0n", "0S", "1n", "99999999n", "1u", "1m"])
async def test_timeouts_that_are_short(host: "Host", value: str) -> None:
    await host.serve()
    client = await host.dial()
    answer = await client.ask(f.call(1, "Hold", grpc_timeout=value))
    refused(answer, DEADLINE_EXCEEDED)
    assert await client.goes_on()
    while not host.probe.began.empty():
        host.probe.began.get_nowait()
        assert await soon(host.probe.ended.get()) == "cancelled"


@pytest.mark.parametrize("value", ["99999999H", "1H", "99999999M", "99999S", "99999999u"])
async def test_timeouts_that_are_long(host: "Host", value: str) -> None:
    await host.serve()
    client = await host.dial()
    answer = await client.ask(f.call(1, payload=b"x", grpc_timeout=value))
    assert (answer.status, answer.messages) == (OK, [b"x"])


X = f.message(b"x")
BOMB = f.message(gzip.compress(bytes(50 << 20)), flag=1)
Row = tuple[str, dict[str, str], bytes, int]
BODIES: dict[str, Row] = {
    "whole": ("Echo", {}, X, OK),
    "an empty message": ("Echo", {}, f.message(b""), OK),
    "nothing": ("Echo", {}, b"", INTERNAL),
    "half a prefix": ("Echo", {}, X[:3], INTERNAL),
    "a prefix": ("Echo", {}, X[:5], INTERNAL),
    "a message cut off": ("Echo", {}, f.message(b"xyz")[:-1], INTERNAL),
    "a large message cut off": ("Echo", {}, f.message(bytes(100_000))[:-1], INTERNAL),
    "two messages": ("Echo", {}, X + X, INTERNAL),
    "a message and a bit": ("Echo", {}, X + b"\x00", INTERNAL),
    "two in a stream": ("Join", {}, X + X, OK),
    "none in a stream": ("Join", {}, b"", OK),
    "a message cut off in a stream": ("Join", {}, X + X[:5], INTERNAL),
    "marked, without an encoding": ("Echo", {}, f.message(b"x", flag=1), INTERNAL),
    "marked, identity": ("Echo", {"grpc_encoding": "identity"}, f.message(b"", flag=1), INTERNAL),
    "marked with 2": ("Echo", GZIP, f.message(gzip.compress(b"x"), flag=2), INTERNAL),
    "gzip": ("Echo", GZIP, f.message(gzip.compress(b"x"), flag=1), OK),
    "gzip of nothing": ("Echo", GZIP, f.message(gzip.compress(b""), flag=1), OK),
    "gzip, not marked": ("Echo", GZIP, X, OK),
    "deflate": ("Echo", DEFLATE, f.message(zlib.compress(b"x"), flag=1), OK),
    "corrupt gzip": ("Echo", GZIP, f.message(b"corrupt", flag=1), INTERNAL),
    "gzip cut off": ("Echo", GZIP, f.message(gzip.compress(b"x" * 99)[:-9], flag=1), INTERNAL),
    "gzip with a wrong sum": (
        "Echo",
        GZIP,
        f.message(gzip.compress(b"x")[:-8] + bytes(8), flag=1),
        INTERNAL,
    ),
    "deflate that is gzip": ("Echo", DEFLATE, f.message(gzip.compress(b"x"), flag=1), INTERNAL),
    "gzip that is deflate": ("Echo", GZIP, f.message(zlib.compress(b"x"), flag=1), INTERNAL),
    "corrupt in a stream": ("Join", GZIP, X + f.message(b"corrupt", flag=1), INTERNAL),
    "unknown encoding": ("Echo", {"grpc_encoding": "snappy"}, X, UNIMPLEMENTED),
    "unknown method": ("Nothing", {}, X, UNIMPLEMENTED),
    "unknown method, nothing": ("Nothing", {}, b"", UNIMPLEMENTED),
    "a handler's fault": ("Fail", {}, X, UNKNOWN),
}


@pytest.mark.parametrize(("method", "more", "sent", "status"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("size", [16384, 6, 1])
async def test_bodies(
    host: "Host", method: str, more: dict[str, str], sent: bytes, status: int, size: int
) -> None:
    if size < 777 and len(sent) > 1000:
        size = 777
    await host.serve()
    client = await host.dial(f.wide())
    head = f.request_fields(method, [(name.replace("_", "-"), more[name]) for name in more])
    answer = await client.ask(f.headers(1, head) + f.body(1, sent, size=size))
    if status == OK:
        assert (answer.status, len(answer.messages)) == (OK, 1)
    else:
        refused(answer, status)
    if status == UNIMPLEMENTED and more:
        assert answer.trailers["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert await client.goes_on()


LARGE: dict[str, Row] = {
    "just not": ("Echo", {}, f.message(bytes(1000)), OK),
    "announced": ("Echo", {}, f.message(bytes(1001))[:5], RESOURCE_EXHAUSTED),
    "announced as gigabytes": ("Echo", {}, b"\x00\xff\xff\xff\xff", RESOURCE_EXHAUSTED),
    "announced in a stream": ("Join", {}, X + f.message(bytes(1001))[:5], RESOURCE_EXHAUSTED),
    "just not, unpacked": ("Echo", GZIP, f.message(gzip.compress(bytes(1000)), flag=1), OK),
    "unpacked": ("Echo", GZIP, f.message(gzip.compress(bytes(1001)), flag=1), RESOURCE_EXHAUSTED),
    "answer": ("Size", {}, f.message(b"1001"), RESOURCE_EXHAUSTED),
    "answer in a stream": ("Numbers", {}, f.message(b"3 1001"), RESOURCE_EXHAUSTED),
    "just not an answer": ("Size", {}, f.message(b"1000"), OK),
}


@pytest.mark.parametrize(("method", "more", "sent", "status"), LARGE.values(), ids=LARGE)
async def test_large_messages(
    host: "Host", method: str, more: dict[str, str], sent: bytes, status: int
) -> None:
    await host.serve(LIMITS)
    client = await host.dial()
    head = f.request_fields(method, [(name.replace("_", "-"), more[name]) for name in more])
    # What was announced need not have come.
    is_last = len(sent) > 100 or method in ("Size", "Numbers") or bool(more)
    answer = await client.ask(f.headers(1, head) + f.body(1, sent, is_last=is_last))
    assert answer.status == status
    if not is_last:
        await client.until(lambda: answer.reset is not None)
        assert answer.reset == Error.NO_ERROR
    assert await client.goes_on()


async def test_a_bomb_in_gzip_is_not_unpacked(host: "Host") -> None:
    await host.serve(Limits(max_message_bytes=1 << 20))
    client = await host.dial()
    head = f.headers(1, f.request_fields("Echo", [("grpc-encoding", "gzip")]))
    assert (await client.ask(head + f.body(1, BOMB))).status == RESOURCE_EXHAUSTED


METADATA: dict[str, tuple[f.Fields, int]] = {
    "a long value": ([("long", "v" * 20_000)], RESOURCE_EXHAUSTED),
    "many fields": ([(f"n{n}", "v" * 40) for n in range(250)], RESOURCE_EXHAUSTED),
    "a long path": ([], UNIMPLEMENTED),
    "short": ([("short", "v" * 10_000)], OK),
    "no base64": ([("a-bin", "\x7f!")], INTERNAL),
    "base64 of five": ([("a-bin", "abcde")], INTERNAL),
    "base64 without padding": ([("a-bin", "YQ")], OK),
}


@pytest.mark.parametrize(("more", "status"), METADATA.values(), ids=METADATA)
async def test_metadata(host: "Host", more: f.Fields, status: int) -> None:
    await host.serve()
    client = await host.dial()
    await client.settled()  # so that the limit is known to it
    method = "x" * 5000 if status == UNIMPLEMENTED else "Echo"
    block = f.plain(f.request_fields(method, more))
    answer = await client.ask(f.header_frames(1, block) + f.body(1, X))
    assert answer.status == status
    assert len(host.probe.metadata) == (status == OK)
    assert await client.goes_on()


async def test_the_answer_ends_before_the_request(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    head = f.headers(1, f.request_fields("Deaf"))
    answer = await client.ask(head)
    assert (answer.status, answer.messages) == (OK, [b"enough"])
    await client.until(lambda: answer.reset is not None)
    assert answer.reset == Error.NO_ERROR
    # What was on its way is stepped over.
    await client.send(f.body(1, f.message(bytes(100_000))))
    assert await client.goes_on()


async def test_no_reset_behind_an_answer_to_a_whole_request(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    for stream in (1, 3, 5):
        await client.ask(f.call(stream), stream=stream)
    await client.settled()
    assert [client.seen(stream).reset for stream in (1, 3, 5)] == [None] * 3


@pytest.mark.parametrize("method", ["Echo", "Join", "Chat"])
async def test_trailers_from_the_client(host: "Host", method: str) -> None:
    await host.serve()
    client = await host.dial()
    sent = f.headers(1, f.request_fields(method)) + f.body(1, X, is_last=False)
    answer = await client.ask(sent + f.headers(1, [("checksum", "1")], is_last=True))
    assert (answer.status, answer.messages) == (OK, [b"x"])


@pytest.mark.parametrize("details", ["", " ", " x", "x ", "x\t", "a b"])
async def test_details_that_begin_or_end_with_space(host: "Host", details: str) -> None:
    # HTTP/2 allows no value to do so, and strict peers reset the stream.
    await host.serve()
    client = await host.dial()
    answer = await client.ask(f.call(1, "Fail", details.encode()))
    escaped = answer.trailers["grpc-message"]
    assert escaped == escaped.strip()
    assert unquote(escaped).endswith(details)
    assert "b" not in details or "a b" in escaped
