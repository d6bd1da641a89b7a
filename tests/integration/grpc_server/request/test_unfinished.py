"""What requests that are not finished may hold, over all connections."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from services.grpc_server.limits import Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

TOO_MUCH, TOO_LATE = 8, 4
MOST = 100_000
LIMITS = Limits(max_unfinished_bytes=MOST)


def held(host: "Host") -> int:
    """Bytes of requests that are not finished."""
    return host.server.options.memory.num_counted


def cut_off(stream: int) -> bytes:
    """Most of a message that comes in two frames."""
    return f.headers(stream) + f.data(stream, f.message(bytes(30_000))[:-1])


def not_ended(stream: int) -> bytes:
    """A whole message, and the client may go on."""
    return f.headers(stream) + f.data(stream, f.message(bytes(30_000)))


def not_taken(stream: int) -> bytes:
    """Messages that no handler takes."""
    return f.headers(stream, f.request_fields("Gated")) + f.data(stream, f.message(b"x") * 300)


def large_metadata(stream: int) -> bytes:
    """Nothing but metadata, other for each call."""
    more = [("long", "v" * 12_000), ("number", str(stream))]
    return f.header_frames(stream, f.plain(f.request_fields("Echo", more)))


KINDS = [cut_off, not_ended, not_taken, large_metadata]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_they_have_a_bound_over_all_connections(
    host: "Host", kind: Callable[[int], bytes]
) -> None:
    await host.serve(LIMITS)
    clients = [await host.dial(f.wide()) for _ in range(4)]
    num_refused = 0
    for client in clients:
        streams = range(1, 21, 2)
        await client.send(*map(kind, streams))
        await client.settled()
        refused = [client.seen(stream) for stream in streams if client.seen(stream).is_ended]
        assert {answer.status for answer in refused} <= {TOO_MUCH}
        num_refused += len(refused)
        assert held(host) <= MOST
    assert num_refused > 20
    # One that is whole as it comes needs none of it.
    assert await clients[0].goes_on(1001)
    for client in clients[1:]:
        client.close()
    # What has gone makes room.
    await clients[0].send(*[f.rst_stream(stream) for stream in range(1, 21, 2)])
    while held(host):
        await clients[0].ping()
    assert host.unhandled


async def test_what_is_taken_is_no_longer_in_it(host: "Host") -> None:
    await host.serve(LIMITS)
    client = await host.dial(f.wide())
    head = f.headers(1, f.request_fields("Hold"))
    sent = f.message(bytes(90_000))
    await client.send(head, f.body(1, sent[:80_000], is_last=False))
    await client.settled()
    assert 79_000 <= held(host) <= 81_000
    await client.send(f.body(1, sent[80_000:]))
    await soon(host.probe.began.get())
    assert held(host) == 0
    host.probe.gate.set()
    assert (await client.answer(1)).status == 0


async def test_fields_that_come_with_every_call_are_held_once(host: "Host") -> None:
    await host.serve(LIMITS)
    client = await host.dial()
    for stream in range(1, 21, 2):
        await client.send(f.headers(stream, f.request_fields("Echo", [("long", "v" * 1500)])))
    await client.settled()
    assert held(host) == 0


async def test_one_that_stands_still_is_ended_while_there_are_too_many(host: "Host") -> None:
    await host.serve(Limits(max_unfinished_bytes=25_000, stall_timeout_s=0.02))
    client, other = await host.dial(f.wide()), await host.dial(f.wide())
    await client.send(f.headers(1), f.data(1, f.message(bytes(30_000))[:20_000]))
    await client.settled()
    answer = await client.answer(1)
    assert (answer.status, "too slowly" in answer.trailers["grpc-message"]) == (TOO_MUCH, True)
    assert await other.goes_on(1)


async def test_one_that_does_not_come_whole_is_ended(host: "Host") -> None:
    await host.serve(Limits(max_request_age_s=0.05, stall_timeout_s=0.02))
    client = await host.dial()
    answer = await client.ask(cut_off(1))
    assert (answer.status, "complete" in answer.trailers["grpc-message"]) == (TOO_LATE, True)
    # A handler that works is waited for.
    await client.send(f.call(3, "Hold"))
    await soon(host.probe.began.get())
    assert (await client.ask(f.headers(5), stream=5)).status == TOO_LATE
    assert not client.seen(3).is_ended
