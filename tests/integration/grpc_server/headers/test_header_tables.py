"""HPACK's table of a connection: what a handler sees is what was sent, whatever came before."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error
from hpack import Encoder

from tests.integration.grpc_server import frames as f

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

NAMES = ["a", "b", "authorization", "x-request-id", "accept-encoding", "user-agent"]
VALUES = ["", "1", "2", "a rather long value that is worth a place in the table", "v" * 200]
SIZES = [0, 40, 100, 300, 1000, 4096]
PLAIN = f.plain(f.request_fields())
HEAD = f.header_frames


class Dialogue:
    """Calls with random fields, written with a table that is never the same for long."""

    def __init__(self, seed: int) -> None:
        self._dice, self._encoder = random.Random(seed), Encoder()
        self._kept: list[f.Fields] = []

    def calls(self, count: int) -> Iterator[tuple[bytes, f.Fields]]:
        """The bytes of each call, and the metadata that its handler must see."""
        for stream in range(1, 2 * count, 2):
            sent, more = self._call(stream)
            yield sent, more

    def _call(self, stream: int) -> tuple[bytes, f.Fields]:
        dice = self._dice
        if dice.random() < 0.1:
            self._encoder.header_table_size = dice.choice(SIZES)
        # The same again, as clients do, or something new.
        if not self._kept or dice.random() < 0.4:
            self._kept = [*self._kept[-4:], self._fields()]
        more = dice.choice(self._kept)
        sent = self._block(stream, f.request_fields("Echo", more), is_last=False)
        sent += f.body(stream, f.message(b""), is_last=dice.random() < 0.8)
        if not sent.endswith(f.body(stream, f.message(b""))):
            # A request's trailers use and change the same table.
            sent += self._block(stream, self._fields(), is_last=True)
        return sent, more

    def _fields(self) -> f.Fields:
        dice = self._dice
        return [(dice.choice(NAMES), dice.choice(VALUES)) for _ in range(dice.randrange(5))]

    def _block(self, stream: int, fields: f.Fields, *, is_last: bool) -> bytes:
        dice = self._dice
        marked = [(name, value, dice.random() < 0.1) for name, value in fields]
        block = self._encoder.encode(marked, huffman=dice.random() < 0.5)
        size = dice.choice([20, 16_384])
        if not block:
            return f.frame(f.HEADERS, f.END_HEADERS | (f.END_STREAM if is_last else 0), stream)
        return HEAD(stream, block, size=size, is_last=is_last)


@pytest.mark.parametrize("seed", range(6))
async def test_metadata_is_what_was_sent(host: "Host", seed: int) -> None:
    await host.serve()
    client = await host.dial(f.wide())
    expected = []
    for number, (sent, more) in enumerate(Dialogue(seed).calls(400)):
        await client.send(sent)
        expected.append(more)
        if number % 20 == 19:
            assert (await client.answer(2 * number + 1)).status == 0
    assert (await client.answer(799)).status == 0
    assert host.probe.metadata == expected


def head(stream: int, block: bytes) -> bytes:
    """A call of Echo that ends with this block's fields."""
    return HEAD(stream, block) + f.body(stream, f.message(b""))


async def seen_by(client: "RawClient", host: "Host", *blocks: bytes) -> list[f.Fields]:
    """The metadata of calls with these blocks, each sent on its own."""
    for number, block in enumerate(blocks):
        stream = 2 * number + 1
        answer = await client.ask(head(stream, block), stream=stream)
        assert answer.status == 0, answer
    return [[(k, str(v)) for k, v in fields] for fields in host.probe.metadata]


def entry(name: str, value: str) -> bytes:
    """A field that takes a place in the table."""
    return b"\x40" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


NEWEST, BEFORE = b"\xbe", b"\xbf"


async def test_the_same_bytes_mean_what_the_table_makes_of_them(host: "Host") -> None:
    await host.serve()
    blocks = [
        PLAIN + entry("a", "1"),
        PLAIN + NEWEST,
        PLAIN + NEWEST,  # once more, and remembered
        PLAIN + entry("a", "2"),
        PLAIN + NEWEST,
        PLAIN + NEWEST + BEFORE,
        PLAIN + entry("a", "2"),  # the same bytes as above, one more entry
        PLAIN + NEWEST + BEFORE,
    ]
    seen = await seen_by(await host.dial(), host, *blocks)
    one, two = ("a", "1"), ("a", "2")
    assert seen == [[one], [one], [one], [two], [two], [two, one], [two], [two, two]]


async def test_an_entry_that_throws_out_its_like(host: "Host") -> None:
    # Entries of 34 bytes in a table for one: the new one is equal to the old in number and size.
    await host.serve()
    blocks = [
        b"\x3f\x05" + PLAIN + entry("a", "1"),
        PLAIN + NEWEST,
        PLAIN + NEWEST,
        PLAIN + entry("b", "2"),
        PLAIN + NEWEST,
        PLAIN + entry("a", "1") + NEWEST,
        PLAIN + NEWEST,
    ]
    seen = await seen_by(await host.dial(), host, *blocks)
    one, two = ("a", "1"), ("b", "2")
    assert seen == [[one], [one], [one], [two], [two], [one, one], [one]]


async def test_a_table_that_is_emptied_and_filled_again(host: "Host") -> None:
    await host.serve()
    empty_and_back = b"\x20\x3f\xe1\x1f"
    blocks = [
        PLAIN + entry("a", "1"),
        PLAIN + NEWEST,
        PLAIN + NEWEST,
        empty_and_back + PLAIN + entry("a", "2"),
        PLAIN + NEWEST,
        PLAIN + NEWEST,
        empty_and_back + PLAIN + entry("a", "1"),
        PLAIN + NEWEST,
    ]
    seen = await seen_by(await host.dial(), host, *blocks)
    one, two = ("a", "1"), ("a", "2")
    assert seen == [[one], [one], [one], [two], [two], [two], [one], [one]]


async def test_an_entry_too_large_for_the_table_empties_it(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    blocks = [
        b"\x3f\x21" + PLAIN + entry("a", "1"),  # a table of 64 bytes
        PLAIN + NEWEST,
        PLAIN + entry("a", "v" * 60),
    ]
    seen = await seen_by(client, host, *blocks)
    assert seen == [[("a", "1")], [("a", "1")], [("a", "v" * 60)]]
    await client.send(head(7, PLAIN + NEWEST))
    await host.ended_by_error(client, Error.COMPRESSION_ERROR)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(f.header_frames(5, PLAIN + entry("a", "2"))[:-1] + b"\x32", id="a call"),
        pytest.param(f.header_frames(5, entry("a", "2") + PLAIN), id="a malformed call"),
        pytest.param(
            f.header_frames(5, f.plain(f.request_fields("Nothing")) + entry("a", "2")),
            id="an unknown method",
        ),
        pytest.param(
            f.header_frames(5, f.plain([(":method", "GET")]) + PLAIN[1:] + entry("a", "2")),
            id="not POST",
        ),
        pytest.param(
            f.header_frames(5, PLAIN) + f.header_frames(5, entry("a", "2"), is_last=True),
            id="trailers",
        ),
        pytest.param(
            f.header_frames(5, PLAIN) + f.header_frames(5, entry("a", "2")),
            id="trailers that do not end",
        ),
    ],
)
async def test_blocks_that_come_to_nothing_change_the_table_too(
    host: "Host", between: bytes
) -> None:
    await host.serve()
    client = await host.dial()
    await seen_by(client, host, PLAIN + entry("a", "1"), PLAIN + NEWEST)
    await client.send(between)
    await client.settled()
    assert (await client.ask(head(7, PLAIN + NEWEST), stream=7)).status == 0
    assert host.probe.metadata[-1] == [("a", "2")]


@pytest.mark.parametrize("num_bytes", [0, 100, 4095])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_client_with_a_smaller_table_hears_that_it_is_not_used(
    host: "Host", num_bytes: int, *, is_late: bool
) -> None:
    await host.serve()
    small = f.settings({1: num_bytes})
    client = await host.dial(f.wide() if is_late else f.wide() + small)
    if is_late:
        assert (await client.ask(f.call(1))).status == 0
        await client.send(small)
    client.keep_table(num_bytes)
    for stream, method, status in ((3, "Echo", 0), (5, "Refuse", 3), (7, "Nobody", 12)):
        answer = await client.ask(f.call(stream, method), stream=stream)
        assert answer.status == status, answer
    big = await client.ask(f.call(9, "Echo", bytes(100_000)), stream=9)
    assert big.status == 0
