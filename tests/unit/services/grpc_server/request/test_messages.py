"""Messages out of bytes: any split, any size; compressed ones stay so."""

import gzip
import itertools
import tracemalloc

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.grpc_server.request.messages import (
    LARGE_BYTES,
    PREFIX,
    CompressedMessage,
    MessageAssembler,
    StatusError,
)

LIMIT = 1 << 20


def wire(payload: bytes, *, flag: int = 0) -> bytes:
    """A message as it is sent."""
    return PREFIX.pack(flag, len(payload)) + payload


def fed(sent: bytes, encoding: str = "identity", limit: int = LIMIT) -> MessageAssembler:
    """An assembler that was given these bytes at once."""
    assembler = MessageAssembler(limit, encoding)
    assembler.feed(memoryview(sent))
    return assembler


def plain(assembler: MessageAssembler) -> bytes:
    """The oldest message, which was not compressed."""
    message = assembler.take()
    assert not isinstance(message, CompressedMessage)
    return bytes(message)


SIZES = st.sampled_from([0, 1, 4, 100, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES + 1])


@settings(max_examples=100, deadline=None)
@given(st.lists(SIZES, max_size=6), st.data())
def test_any_split_gives_the_same_messages(sizes: list[int], data: st.DataObject) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    sent = b"".join(map(wire, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    assembler = MessageAssembler(LIMIT, "identity")
    for begin, end in itertools.pairwise([0, *cuts, len(sent)]):
        piece = memoryview(sent)[begin:end]
        if assembler.large is not None:  # as a connection that reads straight into it
            taken = min(len(piece), len(assembler.large.room))
            assembler.large.room[:taken] = piece[:taken]
            assembler.filled(taken)
            piece = piece[taken:]
        assembler.feed(piece)
    assert assembler.num_whole == len(sizes)
    assert assembler.num_whole_bytes == assembler.num_bytes >= len(sent)
    assert not assembler.is_inside
    assert [plain(assembler) for _ in sizes] == payloads
    assert (assembler.num_whole, assembler.num_whole_bytes) == (0, 0)


@pytest.mark.parametrize("num_bytes", [1, 4, 5, 9])
def test_a_message_that_is_not_whole(num_bytes: int) -> None:
    assembler = fed(wire(b"whole") + wire(b"other")[:num_bytes])
    assert (assembler.num_whole, assembler.is_inside) == (1, True)


def test_empty_messages_count_too() -> None:
    """Of these a window of any size would hold any number."""
    assert fed(wire(b"") * 1000).num_whole_bytes > 50_000


@pytest.mark.parametrize("limit", [10, LARGE_BYTES])
def test_a_size_above_the_limit_is_refused_as_it_is_announced(limit: int) -> None:
    assert fed(wire(bytes(limit)), limit=limit).num_whole == 1
    with pytest.raises(StatusError) as fault:
        fed(PREFIX.pack(0, limit + 1), limit=limit)
    assert fault.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_compressed_messages_among_others_stay_as_they_came() -> None:
    assembler = fed(wire(b"packed", flag=1) + wire(b"plain"), "gzip")
    assert assembler.num_whole_bytes > len(wire(b"packed") + wire(b"plain"))
    assert assembler.take() == CompressedMessage(b"packed", "gzip", LIMIT)
    assert assembler.take() == b"plain"
    assert assembler.num_whole_bytes == assembler.num_bytes == 0


@pytest.mark.parametrize(("max_unpacked", "expected"), [(None, 100), (7, 7), (1000, 100)])
def test_a_message_is_unpacked_to_no_more_than_is_taken(
    max_unpacked: int | None, expected: int
) -> None:
    assembler = MessageAssembler(100, "gzip", max_unpacked=max_unpacked)
    assembler.feed(memoryview(wire(b"x", flag=1)))
    packed = assembler.take()
    assert isinstance(packed, CompressedMessage)
    assert packed.max_bytes == expected


def test_the_size_of_a_message_is_known_before_its_bytes() -> None:
    assembler = MessageAssembler(LIMIT, "identity")
    for sent, size in ((b"\0\0", -1), (b"\0\0\x07", 7), (b"abc", 7), (b"defg", -1)):
        assembler.feed(memoryview(sent))
        assert assembler.size == size


@pytest.mark.parametrize(("flag", "encoding"), [(1, "identity"), (2, "gzip")])
def test_a_mark_that_was_not_announced(flag: int, encoding: str) -> None:
    with pytest.raises(StatusError) as fault:
        fed(wire(b"x", flag=flag), encoding)
    assert fault.value.code is grpc.StatusCode.INTERNAL


def test_what_nobody_takes_stays_as_small_as_it_was_sent() -> None:
    bomb = wire(gzip.compress(bytes(LIMIT)), flag=1)
    tracemalloc.start()
    try:
        assembler = fed(bomb * 20, "gzip")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert assembler.num_whole == 20
    assert kept < LIMIT
