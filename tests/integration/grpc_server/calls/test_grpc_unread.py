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
    call = channel.unary_stream(f"/{SERVICE}/Numbers")(b"64 %d" % PIECE)
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
        # Answers to this one wait too, as they are larger than its windows.
        answers = await soon(asyncio.gather(*(blow(bytes(PIECE)) for _ in range(NUM_STREAMS))))
        assert {len(answer) for answer in answers} == {PIECE + 8}
    assert set(host.gone) == {"unread"}
    assert len(calls) > NUM_STREAMS
    # The first one that stood still.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(read_to_the_end(calls[0]))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert host.server.options.unread.num_bytes <= MOST


async def test_a_connection_with_half_of_what_may_wait_is_refused_more(host: "Host") -> None:
    await host.serve(Limits(max_unread_bytes=MOST))
    channel = slow_channel(host)
    unread = host.server.options.unread
    calls = []
    while unread.num_bytes * 2 <= MOST:
        calls.append(await leave_unread(channel))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await leave_unread(channel)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "answers that are not read" in str(caught.value.details())
    assert host.unhandled[-1].is_overload
    # Others are served, and this one once it has read.
    assert await soon(host.unary()(b"other")) == b"other"
    await soon(asyncio.gather(*map(read_to_the_end, calls)))
    assert unread.num_bytes == 0
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"again")) == b"again"
    assert not host.gone
