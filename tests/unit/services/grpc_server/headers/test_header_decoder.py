"""What is remembered of header blocks, and when it no longer holds."""

from collections.abc import Iterable
from typing import Any

import pytest
from hpack import Encoder
from hpack.struct import NeverIndexedHeaderTuple

from services.grpc_server.headers.header_decoder import HeaderDecoder
from services.grpc_server.headers.request_headers import MalformedFieldsError, RequestHeaders
from services.grpc_server.http2.flood import FloodGuard
from services.grpc_server.http2.frames import ErrorCode, Http2ConnectionError

BURST = 100_000
# The table is for the fields of each test alone.
PLAIN: list[Any] = [
    (":method", "POST"),
    (":scheme", "http"),
    NeverIndexedHeaderTuple(":path", "/a.B/C"),
    NeverIndexedHeaderTuple(":authority", "here"),
    NeverIndexedHeaderTuple("content-type", "application/grpc"),
]


class Client:
    """An encoder and the reader at the other end."""

    def __init__(self) -> None:
        self.guard = FloodGuard(BURST, 0)
        self.encoder, self.reader = Encoder(), HeaderDecoder(16_384, self.guard)

    def block(self, more: Iterable[Any] = ()) -> bytes:
        """A block of a call with these fields too."""
        return self.encoder.encode([*PLAIN, *more])

    def ask(self, more: Iterable[Any] = ()) -> RequestHeaders:
        """The call as it arrives."""
        return self.reader.request_headers(self.block(more))


def test_the_same_block_is_read_once() -> None:
    client = Client()
    client.ask()
    again = client.block()
    assert client.reader.request_headers(again) is client.reader.request_headers(again)


def test_the_same_bytes_mean_others_after_a_change_of_the_table() -> None:
    client = Client()
    client.ask([("a", "1"), ("b", "2")])
    block = client.block([("a", "1")])
    assert client.reader.request_headers(block).metadata == (("a", "1"),)
    # One entry more moves all others by one: the place of `a` is that of `b` now.
    client.ask([("c", "3")])
    assert client.reader.request_headers(block).metadata == (("b", "2"),)


def test_trailers_change_the_table_too() -> None:
    client = Client()
    client.ask([("a", "1"), ("b", "2")])
    block = client.block([("a", "1")])
    assert client.reader.request_headers(block).metadata == (("a", "1"),)
    client.reader.are_trailers(client.encoder.encode([("c", "3")]))
    assert client.reader.request_headers(block).metadata == (("b", "2"),)


def test_a_malformed_call_changes_the_table_too() -> None:
    client = Client()
    with pytest.raises(MalformedFieldsError):
        client.ask([("upgrade", "x"), ("a", "1")])
    assert client.ask([("a", "1")]).metadata == (("a", "1"),)


def test_no_more_is_remembered_than_a_little() -> None:
    client = Client()
    client.ask()
    for number in range(1000):
        secret = NeverIndexedHeaderTuple("token", str(number))
        assert client.ask([secret]).metadata == (("token", str(number)),)
    large = NeverIndexedHeaderTuple("token", "~" * 5000)
    block = client.block([large])
    assert client.reader.request_headers(block) is not client.reader.request_headers(block)


@pytest.mark.parametrize(("num_updates", "is_taken"), [(0, True), (2, True), (3, False)])
@pytest.mark.parametrize("update", [b"\x20", b"\x3f\xe1\x0f"])
def test_changes_of_the_table_s_size(update: bytes, num_updates: int, is_taken: bool) -> None:
    client = Client()
    block = update * num_updates + client.block()
    if is_taken:
        assert client.reader.request_headers(block).path == "/a.B/C"
        return
    with pytest.raises(Http2ConnectionError) as fault:
        client.reader.request_headers(block)
    assert fault.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_list_of_headers_that_is_far_too_long_ends_the_connection() -> None:
    client = Client()
    client.ask([("a", "x" * 4000)])
    (index,) = client.encoder.encode([("a", "x" * 4000)])
    with pytest.raises(Http2ConnectionError) as fault:
        client.reader.request_headers(bytes([index]) * 20)
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_list_a_little_too_long_is_refused_alone() -> None:
    client = Client()
    assert client.ask([("a", "x" * 20_000)]).refusal
    assert not client.ask([("a", "x")]).refusal


def test_many_fields_are_not_remembered() -> None:
    client = Client()
    client.ask([("a", "1")])
    # One byte each in the block, and a hundred times that in memory.
    block = client.block([("a", "1")] * 100)
    assert client.reader.request_headers(block) is not client.reader.request_headers(block)


def test_what_is_decoded_is_counted() -> None:
    client = Client()
    client.ask([("a", "1")])
    block = client.block([("a", "1")] * 396)
    client.guard.charge(BURST - 49)
    with pytest.raises(Http2ConnectionError) as fault:
        client.reader.request_headers(block)
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_what_is_remembered_is_not_charged() -> None:
    client = Client()
    client.ask()
    block = client.block()
    client.reader.request_headers(block)
    client.guard.charge(BURST - 1)
    for _ in range(1000):
        client.reader.request_headers(block)
