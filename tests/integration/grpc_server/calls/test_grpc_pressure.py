"""gRPC's own client against handlers that do not read, and handlers against such clients."""

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.integration.grpc_server.probe import SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

PIECE = 1 << 20
# Above the windows of both sides and what lies in sockets and buffers between them.
PIECES = 64


class Counter:
    """Requests of a stream, counted as the transport takes them."""

    def __init__(self) -> None:
        self.sent = 0

    async def write(self, call: Any) -> None:
        """All requests, and the end."""
        for _ in range(PIECES):
            await call.write(bytes(PIECE))
            self.sent += 1
        await call.done_writing()


async def exhausted(call: Any) -> None:
    """Reads a call's answers to their end."""
    for _ in range(PIECES):
        await call.read()


async def test_a_handler_that_does_not_read_holds_up_its_client(host: "Host") -> None:
    await host.serve()
    channel, counter = host.channel(max_send_message_length=-1), Counter()
    call = channel.stream_stream(f"/{SERVICE}/Gated")()
    writing = asyncio.create_task(counter.write(call))
    await soon(host.probe.began.get())
    # Others on the connection are not held up meanwhile, whatever their size.
    ask = channel.unary_unary(f"/{SERVICE}/Blow")
    for _ in range(8):
        assert len(await soon(ask(bytes(4 * PIECE)))) == 4 * PIECE + 8
    assert counter.sent < PIECES // 2
    host.probe.gate.set()
    await soon(writing)
    assert [answer async for answer in call] == [b"%d" % PIECE] * PIECES


async def test_what_was_answered_before_an_abort_comes_first(host: "Host") -> None:
    await host.serve()
    channel = host.channel(None, **{"http2.bdp_probe": 0})
    call = channel.unary_stream(f"/{SERVICE}/Halfway")(b"80000")
    assert [len(await soon(call.read())) for _ in range(3)] == [80_000] * 3
    assert await soon(call.code()) is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_stop_within_a_message_is_told_as_such(host: "Host") -> None:
    await host.serve()
    channel = host.channel(None, **{"http2.bdp_probe": 0})
    call = channel.unary_stream(f"/{SERVICE}/Numbers")(b"%d %d" % (PIECES, PIECE))
    assert len(await soon(call.read())) == PIECE
    await soon(host.server.stop(0))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(exhausted(call))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("num_streams", [1, 20])
async def test_a_client_that_does_not_read_holds_up_the_handler(
    host: "Host", num_streams: int
) -> None:
    await host.serve()
    # Or the client's windows would grow as fast as the server is.
    channel = host.channel(None, **{"http2.bdp_probe": 0})
    numbers = channel.unary_stream(f"/{SERVICE}/Numbers")
    calls = [numbers(b"%d %d" % (PIECES, PIECE)) for _ in range(num_streams)]
    firsts = [await soon(call.read()) for call in calls]
    assert {len(first) for first in firsts} == {PIECE}
    # Its other calls are answered meanwhile.
    ask = channel.unary_unary(f"/{SERVICE}/Echo")
    for turn in range(100):
        assert await soon(ask(b"%d" % turn)) == b"%d" % turn
    assert host.probe.yielded < PIECES // 2
    for call in calls:
        call.cancel()
    assert {await soon(host.probe.ended.get()) for _ in calls} == {"cancelled"}
