"""Frames by the ten thousand that ask for nothing, and clients that merely send many."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error
from hpack import Encoder
from hyperframe.frame import GoAwayFrame

from services.grpc_server.http2.flood import FRAME_COST
from services.grpc_server.limits import Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

BURST = 2000
MANY = 2 * BURST
# Nothing is forgiven with time, or a slow machine would forgive more than a quick one.
LIMITS = Limits(free_frames=BURST, free_frames_per_second=0)
OPEN = f.headers(1, f.request_fields("Gated"))


def streams() -> Iterator[int]:
    return iter(range(3, 2 * MANY + 3, 2))


def heads(fields: f.Fields, flags: int = f.END_HEADERS) -> Iterator[bytes]:
    """HEADERS of one call after another, as short as a table makes them."""
    encoder = Encoder()
    first, rest = encoder.encode(fields), encoder.encode(fields)
    for stream in streams():
        yield f.frame(f.HEADERS, flags, stream, first if stream == 3 else rest)


def each(fields: f.Fields, more: Callable[[int], bytes], flags: int = f.END_HEADERS) -> bytes:
    """One call after another, with frames behind its HEADERS."""
    return b"".join(
        head + more(stream) for head, stream in zip(heads(fields, flags), streams(), strict=True)
    )


def whole_and_reset(stream: int) -> bytes:
    return f.data(stream, f.message(b""), is_last=True) + f.rst_stream(stream)


def many_fields() -> bytes:
    """Calls that no memory of header blocks helps with, each of 480 fields."""
    fields = [*f.request_fields("Nothing"), *[("a", "")] * 480]
    return b"".join(
        f.headers(stream, [*fields, ("number", str(stream))], is_last=True)
        for stream in range(3, 2 * BURST // 30 + 3, 2)
    )


ENDED = f.END_HEADERS | f.END_STREAM
HOLD = f.request_fields("Hold")
# The client has said itself that nothing more comes of this stream.
CLOSED = OPEN + f.rst_stream(1)
FLOODS = {
    "PING": f.frame(f.PING, payload=bytes(8)) * MANY,
    "PING that nobody asked": f.frame(f.PING, f.ACK, payload=bytes(8)) * MANY,
    "SETTINGS": f.settings({}) * MANY,
    "SETTINGS that change": (f.settings({4: 10}) + f.settings({4: 20})) * (MANY // 2),
    "SETTINGS that are long": f.frame(f.SETTINGS, payload=struct.pack("!HI", 9, 9) * 2700)
    * (MANY // 300),
    "SETTINGS that nobody said": f.frame(f.SETTINGS, f.ACK) * MANY,
    "empty DATA": OPEN + f.data(1, b"") * MANY,
    "tiny DATA": OPEN + f.data(1, b"\x00") * MANY,
    "empty messages": OPEN + f.data(1, f.message(b"")) * MANY,
    "padding alone": OPEN + f.frame(f.DATA, f.PADDED, 1, b"\x00") * MANY,
    "empty DATA of a closed stream": CLOSED + f.data(1, b"") * MANY,
    "DATA of a closed stream": CLOSED + f.data(1, bytes(100)) * MANY,
    "DATA behind the end": each(HOLD, lambda n: f.data(n, b""), ENDED),
    "DATA behind the end of a stream": each(
        f.request_fields("Gated"), lambda n: f.data(n, b""), ENDED
    ),
    "PRIORITY": f.frame(f.PRIORITY, 0, 1, bytes(5)) * MANY,
    "resets": each(HOLD, f.rst_stream),
    "resets of whole requests": each(HOLD, whole_and_reset),
    "resets of one stream": OPEN + f.rst_stream(1) * MANY,
    "malformed requests": b"".join(heads([(":method", "POST"), *f.request_fields()])),
    "window by window": f.window_update(0, 1) * MANY,
    "large windows": f.window_update(0, 1024) * MANY,
    "windows of a closed stream": CLOSED + f.window_update(1, 1024) * MANY,
    "windows that break streams": each(HOLD, lambda n: f.window_update(n, 0)),
    "windows that overflow": each(HOLD, lambda n: f.window_update(n, f.MAX_WINDOW)),
    "trailers that do not end": each(HOLD, lambda n: f.headers(n, [("a", "b")])),
    "GOAWAY": f.frame(f.GOAWAY, 0, 0, bytes(8)) * MANY,
    "unknown frames": f.frame(f.UNKNOWN) * MANY,
    "many fields": many_fields(),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_ends_its_connection(host: "Host", flood: bytes) -> None:
    await host.serve(LIMITS)
    client, other = await host.dial(), await host.dial()
    await client.settled()
    sending = asyncio.create_task(client.send(flood))
    assert await client.goaway() == Error.ENHANCE_YOUR_CALM
    await soon(sending)
    assert await other.goes_on(1)


async def test_a_flood_that_reads_nothing_ends_too(host: "Host") -> None:
    await host.serve(LIMITS)
    client, other = await host.dial(), await host.dial()
    await soon(client.send(FLOODS["PING"]))
    assert await other.goes_on(1)
    assert await client.goaway() == Error.ENHANCE_YOUR_CALM


async def test_refusals_that_are_not_read(host: "Host") -> None:
    # No window holds them back, so they would pile up here for ever.
    await host.serve(LIMITS)
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
    await host.serve(LIMITS)
    client = await host.dial(f.wide(1 << 20))
    between = f.frame(f.PING, payload=bytes(8)) + f.window_update(1, 1)
    num_calls = 3 * BURST
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


@pytest.mark.parametrize(("size", "num_pieces"), [(1, BURST // 2), (FRAME_COST, 2 * BURST)])
async def test_small_pieces_of_one_message_are_no_flood(
    host: "Host", size: int, num_pieces: int
) -> None:
    await host.serve(LIMITS)
    client = await host.dial(f.wide())
    sent = bytes(size * num_pieces)
    head = f.headers(1, f.request_fields("Join"))
    answer = await client.ask(head, f.body(1, f.message(sent), size=size))
    assert answer.messages == [sent]


async def test_what_was_on_its_way_to_calls_that_were_refused_is_no_flood(host: "Host") -> None:
    await host.serve(LIMITS)
    client = await host.dial(f.wide())
    for stream in range(1, 81, 2):
        head = f.headers(stream, f.request_fields("Nothing"))
        await client.send(head, f.data(stream, bytes(1024)) * 64)
    assert await client.goes_on(81)


async def test_what_comes_of_a_refused_call_beyond_its_window_is_a_flood(host: "Host") -> None:
    await host.serve(LIMITS)
    client = await host.dial(f.wide())
    await client.send(f.headers(1, f.request_fields("Nothing")))
    sending = asyncio.create_task(client.send(f.data(1, bytes(1024)) * (BURST + 4200)))
    assert await client.goaway() == Error.ENHANCE_YOUR_CALM
    await soon(sending)


async def test_many_grants_byte_by_byte_for_answers_under_way_are_no_flood(host: "Host") -> None:
    await host.serve(LIMITS)
    client = await host.dial(f.greeting({4: 0}))
    await client.send(f.call(1, "Size", b"1000"))
    answer = await client.ask(f.window_update(1, 1) * 1005)
    assert answer.messages == [b"\x5a" * 1000]


async def test_pings_in_quick_succession_end_the_connection_as_grpc_does(host: "Host") -> None:
    """Clients of gRPC read the debug data, and send PING half as often afterwards."""
    await host.serve(Limits(max_ping_strikes=3))
    client = await host.dial()
    for stream in (1, 3):
        for _ in range(4):
            await client.ping()
        # What is answered in between makes them a client's measurements.
        assert await client.goes_on(stream)
    for _ in range(4):
        await client.ping()
    await client.send(f.frame(f.PING, payload=bytes(8)))
    assert await client.goaway() == Error.ENHANCE_YOUR_CALM
    last = client.frames[-1]
    assert isinstance(last, GoAwayFrame)
    assert last.additional_data == b"too_many_pings"
