"""A gateway with its HTTP port open, before the fleet of two replicas."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

Curl = Callable[..., Awaitable["Got"]]


@dataclass(frozen=True)
class Got:
    """What curl printed: status, header fields by their names in lower case, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
async def http_fleet(echo_fleet: "Fleet") -> "Fleet":
    """Two replicas of `echo` behind a gateway that speaks HTTP too."""
    return await with_http(echo_fleet)


async def with_http(fleet: "Fleet", *replicas: str, **settings: Any) -> "Fleet":
    """The fleet with another gateway, once that can ask the replicas."""
    await fleet.start_gateway(http_port=0, **settings)
    await fleet.until_ready(*(replicas or ("r1", "r2")))
    return fleet


@pytest.fixture
def curl(http_fleet: "Fleet") -> Curl:
    """Runs curl with arguments, of which the last is a path of the gateway."""
    return lambda *arguments, **named: run_curl(http_fleet, *arguments, **named)


async def run_curl(
    fleet: "Fleet", *arguments: str, given: bytes = b"", scheme: str = "http"
) -> Got:
    """What curl gets of a gateway."""
    *options, path = arguments
    process = await asyncio.create_subprocess_exec(
        "curl",
        "-sS",
        "--http1.1",
        "-D",
        "-",
        *options,
        f"{scheme}://127.0.0.1:{fleet.gateway.http_port}{path}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(given)
    head, _, body = out.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    pairs = (field.partition(": ") for field in fields)
    return Got(int(first.split()[1]), {key.lower(): value for key, _, value in pairs}, body)
