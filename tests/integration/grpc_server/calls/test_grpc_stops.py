"""gRPC's own client while servers stop, start again and share a port."""

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.integration.grpc_server.probe import LIMIT_S, SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

Code = grpc.StatusCode
METHOD = f"/{SERVICE}/Hold"


async def test_calls_in_flight_finish_within_the_grace(host: "Host") -> None:
    await host.serve()
    ask = host.unary("Hold")
    calls = [ask(b"%d" % number) for number in range(20)]
    for _ in calls:
        await soon(host.probe.began.get())
    stopping = asyncio.create_task(host.server.stop(LIMIT_S))
    await asyncio.sleep(0.05)  # the server now waits; were it not to, the calls would fail
    assert not stopping.done()
    host.probe.gate.set()
    assert await soon(asyncio.gather(*calls)) == [b"%d" % number for number in range(20)]
    await soon(stopping)


async def test_a_stream_in_flight_goes_on_within_the_grace(host: "Host") -> None:
    await host.serve()
    call = host.channel().stream_stream(f"/{SERVICE}/Chat")()
    await call.write(b"before")
    assert await soon(call.read()) == b"before"
    stopping = asyncio.create_task(host.server.stop(LIMIT_S))
    for turn in range(50):
        await call.write(b"%d" % turn)
        assert await soon(call.read()) == b"%d" % turn
    assert not stopping.done()
    await call.done_writing()
    assert await soon(call.code()) is Code.OK
    await soon(stopping)


@pytest.mark.parametrize("grace_s", [0.0, 0.1])
async def test_calls_beyond_the_grace_are_unavailable(host: "Host", grace_s: float) -> None:
    await host.serve()
    ask = host.unary("Hold")
    calls = [ask(b"") for _ in range(20)]
    for _ in calls:
        await soon(host.probe.began.get())
    await soon(host.server.stop(grace_s))
    assert {await soon(call.code()) for call in calls} == {Code.UNAVAILABLE}
    assert {host.probe.ended.get_nowait() for _ in calls} == {"cancelled"}


async def test_stopping_without_connections_takes_no_grace(host: "Host") -> None:
    await host.serve()
    await soon(host.server.stop(1000))


async def test_idle_connections_take_no_grace(host: "Host") -> None:
    await host.serve()
    assert await soon(host.unary()(b"and idle")) == b"and idle"
    await soon(host.server.stop(1000))


async def test_a_channel_works_on_after_the_server_was_started_anew(host: "Host") -> None:
    port = await host.serve()
    channel = host.channel(initial_reconnect_backoff_ms=50)
    ask = channel.unary_unary(f"/{SERVICE}/Echo")
    for turn in range(3):
        assert await soon(ask(b"%d" % turn, wait_for_ready=True)) == b"%d" % turn
        await soon(host.server.stop(0))
        # Before the channel knows that its connection ended, a call may be written to it and lost.
        await soon(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        await host.serve(port=port)
    assert await soon(ask(b"last", wait_for_ready=True)) == b"last"


async def test_new_calls_while_one_server_of_two_stops_go_to_the_other(host: "Host") -> None:
    # No call is lost: those that the stopping server did not look at are sent again by gRPC.
    port = await host.serve(is_shared=True)
    first = host.server
    ask = host.unary(initial_reconnect_backoff_ms=50)
    assert await soon(ask(b"warm")) == b"warm"
    await host.serve(port=port, is_shared=True)
    calls = [asyncio.ensure_future(ask(b"%d" % number)) for number in range(100)]
    await asyncio.sleep(0)
    stopping = asyncio.create_task(first.stop(LIMIT_S))
    calls += [asyncio.ensure_future(ask(b"%d" % number)) for number in range(100, 200)]
    assert await soon(asyncio.gather(*calls)) == [b"%d" % number for number in range(200)]
    await soon(stopping)


async def test_a_port_is_shared_only_when_asked_for(host: "Host") -> None:
    port = await host.serve()
    with pytest.raises(OSError, match="in use"):
        await host.serve(port=port)


async def test_a_shared_port_is_free_again_after_stop(host: "Host") -> None:
    port = await host.serve(is_shared=True)
    for _ in range(3):
        await soon(host.server.stop(0))
        await host.serve(port=port, is_shared=True)
    assert await soon(host.unary()(b"x", wait_for_ready=True)) == b"x"


async def test_stop_leaves_no_tasks(host: "Host") -> None:
    before = asyncio.all_tasks()
    await host.serve()
    client = await host.dial()
    await client.settled()
    client.close()
    await soon(host.server.stop(0))
    assert asyncio.all_tasks() <= before
