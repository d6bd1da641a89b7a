"""Calls that end while their request is still coming, by the server's or the client's will."""

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from h2.errors import ErrorCodes as Error

from services.grpc_server.limits import CONNECTION_WINDOW, Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

# One frame, so large that it is read straight into its message; half of it is on its way.
LARGE = f.message(bytes(600_000))
FRAME = f.data(1, LARGE)
HALF = len(FRAME) // 2
BEGUN = [FRAME[:50], FRAME[50 : HALF // 2], FRAME[HALF // 2 : HALF]]


@pytest.mark.parametrize("method", ["Echo", "Join", "Gated"])
async def test_a_deadline_passes_within_a_large_frame(host: "Host", method: str) -> None:
    await host.serve()
    client = await host.dial(f.wide())
    await client.settled()  # so that nothing of ours stands within the frame
    await client.send(f.headers(1, f.request_fields(method, [("grpc-timeout", "60m")])))
    for piece in BEGUN:
        await client.send(piece)
        await asyncio.sleep(0)
    answer = await client.answer(1)
    assert answer.status == 4
    await client.until(lambda: answer.reset is not None)
    assert answer.reset == Error.NO_ERROR
    # The rest of the frame was on its way, and more.
    await client.send(FRAME[HALF:], f.data(1, b"more", is_last=True))
    assert await client.goes_on()
    assert not client.goaways


@pytest.mark.parametrize("method", ["Echo", "Join", "Chat"])
async def test_a_connection_is_lost_within_a_large_frame(host: "Host", method: str) -> None:
    await host.serve()
    client, other = await host.dial(), await host.dial()
    await client.send(f.headers(1, f.request_fields(method)))
    for piece in BEGUN:
        await client.send(piece)
        await asyncio.sleep(0)
    client.close()
    assert await other.goes_on(1)


async def test_a_server_stops_within_a_large_frame(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.wide())
    # The other call's answer shows that what was sent before has been read.
    await client.ask(f.headers(1), f.call(3), stream=3)
    for piece in BEGUN:
        await client.send(piece)
        await asyncio.sleep(0)
    stopping = asyncio.create_task(host.server.stop(0))
    await client.goaway()
    await soon(stopping)
    assert client.seen(1).status == 14


async def test_early_answers_cost_the_connection_no_window(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.wide())
    count = 2 * CONNECTION_WINDOW >> 20
    for stream in range(1, 2 * count, 2):
        await client.send(f.headers(stream, f.request_fields("Nothing")))
        await client.send(f.data(stream, bytes(1 << 20)))
    last = 2 * count + 1
    assert await client.goes_on(last)
    assert client.seen(0).credit > CONNECTION_WINDOW


async def test_a_message_too_large_is_not_waited_for(host: "Host") -> None:
    await host.serve(Limits(max_message_bytes=100_000))
    client = await host.dial()
    await client.settled()  # so that nothing of ours stands within the frame
    await client.send(f.headers(1), BEGUN[0])
    answer = await client.answer(1)
    assert answer.status == 8
    await client.send(FRAME[50:], f.data(1, b"", is_last=True))
    assert await client.goes_on()


async def test_a_client_gives_up_what_it_has_not_sent(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.settled()  # so that frames may be that large
    for stream in range(1, 201, 2):
        await client.send(f.headers(stream), f.data(stream, LARGE[:30_000]), f.rst_stream(stream))
    assert await client.goes_on(201)
    assert host.probe.metadata == [[]]


async def test_a_reset_comes_together_with_the_request(host: "Host") -> None:
    # Handlers may begin or not; whoever began is told.
    await host.serve()
    client = await host.dial()
    for stream in range(1, 201, 2):
        await client.send(f.call(stream, "Hold"), f.rst_stream(stream))
    await client.settled()
    while not host.probe.began.empty():
        host.probe.began.get_nowait()
        assert await soon(host.probe.ended.get()) == "cancelled"
    assert not client.seen(1).heads


async def test_a_handler_that_ignores_its_cancellation(host: "Host") -> None:
    is_held, may_go = asyncio.Event(), asyncio.Event()
    told: asyncio.Queue[str] = asyncio.Queue()

    async def stubborn(body: bytes, context: object) -> bytes:
        is_held.set()
        while not may_go.is_set():
            try:
                await may_go.wait()
            except asyncio.CancelledError:
                told.put_nowait("cancelled")
        return b"late"

    await host.serve(methods={"Stubborn": grpc.unary_unary_rpc_method_handler(stubborn)})
    client = await host.dial()
    fields = [field for field in f.request_fields() if field[0] != ":path"]
    head = [*fields[:1], (":path", "/test.More/Stubborn"), *fields[1:]]
    await client.send(f.headers(1, head), f.body(1, f.message(b"")))
    await soon(is_held.wait())
    await client.send(f.rst_stream(1))
    assert await soon(told.get()) == "cancelled"
    may_go.set()
    await client.settled()
    # Its answer goes nowhere, and the connection goes on.
    assert not client.seen(1).heads
    assert await client.goes_on()


async def test_a_client_leaves_in_the_turn_in_which_it_is_drained(
    host: "Host", caplog: pytest.LogCaptureFixture
) -> None:
    """Asyncio's own loop raises when it is told to end a connection that is gone."""
    await host.serve()
    client = await host.dial()
    await client.settled()
    client.is_polite = False
    stopping = asyncio.create_task(host.server.stop(1))
    await client.until(lambda: bool(client.goaways))
    client.say_and_leave(f.frame(f.PING, f.ACK, payload=b"draining"))
    await soon(stopping)
    assert "failed" not in caplog.text
