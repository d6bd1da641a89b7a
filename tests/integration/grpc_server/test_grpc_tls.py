"""The same over TLS, whose transports read, write and close in their own way."""

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from tests.certificates import Authority
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import LIMIT_S, SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


async def secure_channel(host: "Host", folder: Path) -> Any:
    """A channel to a server with a new certificate."""
    authority = Authority(folder)
    await host.serve(tls=host.tls(authority.sign("server")))
    trusted = grpc.ssl_channel_credentials(authority.cert.read_bytes())
    return host.channel(trusted, max_send_message_length=-1)


async def test_calls_of_all_sizes(host: "Host", tmp_path: Path) -> None:
    channel = await secure_channel(host, tmp_path)
    ask = channel.unary_unary(f"/{SERVICE}/Echo")
    dice = random.Random(4)
    for size in (0, 1, 1000, 16_384, 70_000, 300_000, 10 << 20):
        request = dice.randbytes(size)
        assert await soon(ask(request)) == request
    requests = [dice.randbytes(dice.randrange(50_000)) for _ in range(100)]
    assert await soon(asyncio.gather(*map(ask, requests))) == requests


async def test_streams(host: "Host", tmp_path: Path) -> None:
    channel = await secure_channel(host, tmp_path)
    said = [random.Random(5).randbytes(size) for size in (0, 1, 100_000, 1_000_000, 5)]
    chat = channel.stream_stream(f"/{SERVICE}/Chat")(iter(said))
    assert [answer async for answer in chat] == said
    numbers = channel.unary_stream(f"/{SERVICE}/Numbers")(b"100 100000")
    assert [answer[:4] async for answer in numbers] == [n.to_bytes(4, "big") for n in range(100)]


async def test_a_stop_with_calls_in_flight(host: "Host", tmp_path: Path) -> None:
    channel = await secure_channel(host, tmp_path)
    held = channel.unary_unary(f"/{SERVICE}/Hold")(b"held")
    await soon(host.probe.began.get())
    stopping = asyncio.create_task(host.server.stop(LIMIT_S))
    host.probe.gate.set()
    assert await soon(held) == b"held"
    await soon(stopping)


async def test_calls_beyond_the_grace(host: "Host", tmp_path: Path) -> None:
    channel = await secure_channel(host, tmp_path)
    held = channel.unary_unary(f"/{SERVICE}/Hold")(b"held")
    await soon(host.probe.began.get())
    await soon(host.server.stop(0))
    assert await soon(held.code()) is grpc.StatusCode.UNAVAILABLE


async def test_plain_text_is_refused(host: "Host", tmp_path: Path) -> None:
    channel = await secure_channel(host, tmp_path)
    client = await host.dial(f.greeting() + f.call(1))
    assert b"test.Probe" not in await client.rest()
    assert host.probe.metadata == []
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"on")) == b"on"


async def test_a_peer_that_breaks_off_its_handshake(host: "Host", tmp_path: Path) -> None:
    channel = await secure_channel(host, tmp_path)
    for first in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello"):
        client = await host.dial(first)
        client.close()
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"on")) == b"on"
