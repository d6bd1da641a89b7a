"""How long a connection may last, how many there may be, and why each ended."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error

from services.grpc_server.limits import Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient


async def went(host: "Host", other: "RawClient", reason: str) -> None:
    """The first connection that has ended did so for this reason; gRPC's own server says none."""
    async with asyncio.timeout(30):
        while host.is_ours and not host.gone:
            await other.ping()
    assert host.gone[:1] == [reason] * host.is_ours


@pytest.mark.parametrize("first", [b"", f.PREFACE[:10], f.PREFACE])
async def test_one_that_does_not_send_its_settings_is_closed(host: "Host", first: bytes) -> None:
    await host.serve(Limits(handshake_timeout_s=0.05))
    other = await host.dial()
    await other.ping()
    client = await host.dial(first)
    await client.rest()
    client.close()
    await went(host, other, "silent")


async def test_one_without_calls_is_ended(host: "Host") -> None:
    await host.serve(Limits(max_connection_idle_s=0.1, drain_timeout_s=0.02))
    client = await host.dial()
    assert await client.goaway() == Error.NO_ERROR
    client.close()
    late = await host.dial()
    assert await late.goes_on(1)
    await went(host, late, "idle")


async def test_one_with_a_call_is_not_idle(host: "Host") -> None:
    await host.serve(Limits(max_connection_idle_s=0.04, drain_timeout_s=0.02))
    busy, idle = await host.dial(f.greeting() + f.call(1, "Hold")), await host.dial()
    await soon(host.probe.began.get())
    # Both are looked at equally often.
    for _ in range(3):
        await idle.goaway()
        idle = await host.dial()
    assert not busy.goaways
    host.probe.gate.set()
    assert (await busy.answer(1)).status == 0


async def test_one_that_is_old_takes_no_new_calls_and_answers_those_it_has(host: "Host") -> None:
    await host.serve(Limits(max_connection_age_s=0.05, drain_timeout_s=0.02))
    client = await host.dial(f.greeting() + f.call(1, "Hold"))
    await soon(host.probe.began.get())
    await client.until(lambda: len(client.goaways) == 2)
    late = await client.ask(f.call(3), stream=3)
    assert late.reset == Error.REFUSED_STREAM
    host.probe.gate.set()
    assert (await client.answer(1)).status == 0
    assert await client.goaway() == Error.NO_ERROR
    client.close()
    other = await host.dial()
    await went(host, other, "age")


async def is_served(host: "Host") -> bool:
    """Whether one more connection is."""
    client = await host.dial()
    try:
        return await client.goes_on(1)
    except ConnectionError:
        return False


async def test_no_more_than_so_many(host: "Host") -> None:
    await host.serve(Limits(max_connections=1))
    first = await host.dial()
    assert await first.goes_on(1)
    second = await host.dial()
    assert await second.rest() == b""
    assert await first.goes_on(3)
    await went(host, first, "limit")
    first.close()
    async with asyncio.timeout(30):
        while not await is_served(host):
            pass


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (f.frame(f.PING, payload=bytes(8)) * 99, "flood"),
        (f.data(0, b""), "protocol"),
        (b"", "client"),
    ],
)
async def test_the_reason_is_told(host: "Host", sent: bytes, reason: str) -> None:
    await host.serve(Limits(free_frames=50, free_frames_per_second=0))
    client, other = await host.dial(), await host.dial()
    await client.ping()
    if sent:
        await client.send(sent)
        await client.goaway()
    client.close()
    async with asyncio.timeout(30):
        while not host.gone:  # noqa: ASYNC110 - a client that pings would be a flood
            await asyncio.sleep(0.001)
    assert host.gone == [reason]
    assert await other.goes_on(1)
