"""Frames by the ten thousand that ask for nothing, and clients that merely send many."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error
from hpack import Encoder

from services.gateway.http2.flood import BURST
from tests.integration.gateway.http2 import frames as f
from tests.integration.gateway.http2.probe import soon

if TYPE_CHECKING:
    from tests.integration.gateway.http2.conftest import Host

# A slow machine takes seconds over these, and seconds are forgiven some.
MANY = 3 * BURST
OPEN = f.headers(1, f.request_fields("Gated"))


def streams() -> Iterator[int]:
    return iter(range(3, 2 * MANY + 3, 2))


def heads(fields: f.Fields, flags: int = f.END_HEADERS) -> Iterator[bytes]:
    """HEADERS of one call after another, as short as a table makes them."""
    encoder = Encoder()
    first, rest = encoder.encode(fields), encoder.encode(fields)
    for stream in streams():
        yield f.frame(f.HEADERS, flags, stream, first if stream == 3 else rest)


def resets() -> bytes:
    return b"".join(
        head + f.rst_stream(stream)
        for head, stream in zip(heads(f.request_fields("Hold")), streams(), strict=True)
    )


def whole_and_resets() -> bytes:
    body = f.message(b"")
    return b"".join(
        head + f.data(stream, body, is_last=True) + f.rst_stream(stream)
        for head, stream in zip(heads(f.request_fields("Hold")), streams(), strict=True)
    )


FLOODS = {
    "PING": f.frame(f.PING, payload=bytes(8)) * MANY,
    "SETTINGS": f.settings({}) * MANY,
    "SETTINGS that change": (f.settings({4: 10}) + f.settings({4: 20})) * (MANY // 2),
    "empty DATA": OPEN + f.data(1, b"") * MANY,
    "padding alone": OPEN + f.frame(f.DATA, f.PADDED, 1, b"\x00") * MANY,
    "PRIORITY": f.frame(f.PRIORITY, 0, 1, bytes(5)) * MANY,
    "resets": resets(),
    "resets of whole requests": whole_and_resets(),
    "resets of one stream": OPEN + f.rst_stream(1) * MANY,
    "malformed requests": b"".join(heads([(":method", "POST"), *f.request_fields()])),
    "window by window": f.window_update(0, 1) * MANY,
    "GOAWAY": f.frame(f.GOAWAY, 0, 0, bytes(8)) * MANY,
    "unknown frames": f.frame(f.UNKNOWN) * MANY,
    "windows that break streams": b"".join(
        head + f.window_update(stream, 0)
        for head, stream in zip(heads(f.request_fields("Hold")), streams(), strict=True)
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_ends_its_connection(host: "Host", flood: bytes) -> None:
    await host.serve()
    client, other = await host.dial(), await host.dial()
    await client.settled()
    sending = asyncio.create_task(client.send(flood))
    assert await client.goaway() == Error.ENHANCE_YOUR_CALM
    await soon(sending)
    assert await other.goes_on(1)


async def test_a_flood_that_reads_nothing_ends_too(host: "Host") -> None:
    await host.serve()
    client, other = await host.dial(), await host.dial()
    await soon(client.send(FLOODS["PING"]))
    assert await other.goes_on(1)
    assert await client.goaway() == Error.ENHANCE_YOUR_CALM


async def test_refusals_that_are_not_read(host: "Host") -> None:
    # No window holds them back, so they would pile up here for ever.
    await host.serve()
    client, other = await host.dial(), await host.dial()
    await client.settled()
    refused = b"".join(f.call(stream, "Refuse", b"x" * 5000) for stream in range(1, 8001, 2))
    sending = asyncio.create_task(client.send(refused))
    assert await other.goes_on(1)
    await soon(sending)
    # It may be lost among what was not read.
    assert await client.goaway() in (Error.ENHANCE_YOUR_CALM, None)


async def test_whoever_is_answered_may_send_some_of_each(host: "Host") -> None:
    # Pings to measure the way, settings, small grants, and many calls given up.
    await host.serve()
    client = await host.dial(f.wide(1 << 20))
    between = f.frame(f.PING, payload=bytes(8)) + f.window_update(1, 1)
    num_calls = 3 * BURST // 8
    for first in range(1, num_calls, 200):
        numbers = range(4 * first - 3, 4 * (first + 200) - 3, 4)
        await client.send(
            *[
                f.call(number, payload=b"x") + between + f.call(number + 2, "Hold")
                for number in numbers
            ],
            *[f.rst_stream(number + 2) for number in numbers],
        )
        for number in numbers:
            assert (await client.answer(number)).messages == [b"x"]
    assert not client.goaways


async def test_many_small_pieces_of_one_message_are_no_flood(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    sent = f.message(bytes(2 * BURST))
    answer = await client.ask(f.headers(1, f.request_fields("Join")), f.body(1, sent, size=1))
    assert answer.messages == [bytes(2 * BURST)]


async def test_many_grants_byte_by_byte_for_answers_under_way_are_no_flood(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({4: 0}))
    await client.send(f.call(1, "Size", b"3000"))
    answer = await client.ask(f.window_update(1, 1) * 3005)
    assert answer.messages == [b"\x5a" * 3000]
