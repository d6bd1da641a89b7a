"""Clients that leave their answers unread, beside one that reads."""

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from services.grpc_server.limits import Limits
from tests.integration.grpc_server.probe import SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

PIECE = 1 << 20
# Each has up to two answers that wait: the next is made once little is left of the one before.
NUM_STREAMS = 8
MOST = 4 * NUM_STREAMS * PIECE


async def leave_unread(channel: Any) -> Any:
    """A stream whose first message alone is read."""
    call = channel.unary_stream(f"/{SERVICE}/Numbers")(b"4 %d" % PIECE)
    assert len(await soon(call.read())) == PIECE
    return call


def slow_channel(host: "Host") -> Any:
    """A connection whose windows do not grow as fast as the server is."""
    return host.channel(None, **{"http2.bdp_probe": 0})


async def read_to_the_end(call: Any) -> None:
    """Read a call's answers."""
    while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined] # stubs lack it
        pass


async def test_connections_end_that_are_not_read_and_no_other(host: "Host") -> None:
    await host.serve(Limits(max_unread_bytes=MOST))
    blow = host.unary("Blow", max_send_message_length=-1)
    calls: list[Any] = []
    while not host.gone:
        channel = slow_channel(host)
        calls += await soon(asyncio.gather(*(leave_unread(channel) for _ in range(NUM_STREAMS))))
        # What they read before counts no more.
        for _ in range(2):
            host.server.check_progress()
        # Answers to this one wait too, as they are larger than its windows.
        answers = await soon(asyncio.gather(*(blow(bytes(PIECE)) for _ in range(NUM_STREAMS))))
        assert {len(answer) for answer in answers} == {PIECE + 8}
    assert set(host.gone) == {"unread"}
    assert len(calls) > NUM_STREAMS
    ends = await soon(asyncio.gather(*map(read_to_the_end, calls), return_exceptions=True))
    codes = [end.code() for end in ends if isinstance(end, grpc.aio.AioRpcError)]
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
    assert len(codes) == len(host.gone) * NUM_STREAMS
    assert host.server.options.unread.num_bytes <= MOST


async def test_a_connection_that_alone_reads_nothing_is_refused_more(host: "Host") -> None:
    await host.serve(Limits(max_unread_bytes=MOST))
    channel = slow_channel(host)
    calls: list[Any] = []

    async def fill() -> None:
        while True:
            calls.append(await leave_unread(channel))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(fill())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "this connection reads the slowest" in str(caught.value.details())
    unread = host.server.options.unread
    assert MOST - 2 * PIECE < unread.num_bytes <= MOST
    # Others are served, and this one once it has read.
    assert await soon(host.unary()(b"other")) == b"other"
    await soon(asyncio.gather(*map(read_to_the_end, calls), return_exceptions=True))
    assert unread.num_bytes == 0
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"again")) == b"again"
    assert not host.gone
