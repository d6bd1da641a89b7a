"""TLS handshakes that never end: they count as connections, and have a deadline."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from services.grpc_server.limits import Limits
from tests.certificates import Authority
from tests.integration.grpc_server.probe import LIMIT_S, SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


async def test_no_more_than_so_many(host: "Host", tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    await host.serve(Limits(max_connections=2), tls=host.tls(authority.sign("server")))
    silent = [await host.dial(b"") for _ in range(2)]
    assert await soon((await host.dial(b"")).rest()) == b""
    for client in silent:
        client.close()
    trusted = grpc.ssl_channel_credentials(authority.cert.read_bytes())
    ask = host.channel(trusted).unary_unary(f"/{SERVICE}/Echo")
    assert await ask(b"room", wait_for_ready=True, timeout=LIMIT_S) == b"room"


async def test_those_that_stall_are_closed(host: "Host", tmp_path: Path) -> None:
    files = Authority(tmp_path).sign("server")
    await host.serve(Limits(handshake_timeout_s=0.2), tls=host.tls(files))
    client = await host.dial(b"\x16\x03\x01")
    assert b"test.Probe" not in await soon(client.rest())


async def test_a_stop_waits_for_none(host: "Host", tmp_path: Path) -> None:
    await host.serve(tls=host.tls(Authority(tmp_path).sign("server")))
    client = await host.dial(b"\x16\x03\x01")
    await asyncio.sleep(0)
    await soon(host.server.stop(LIMIT_S))
    client.close()
