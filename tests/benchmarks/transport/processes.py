"""The three processes of a measurement: replica, gateway, client.

    python -m tests.benchmarks.transport.processes replica LINK ADDRESS
    python -m tests.benchmarks.transport.processes gateway LINK ADDRESS FRONT
    python -m tests.benchmarks.transport.processes client

Servers print "ready" and run until their standard input ends. The client reads one JSON
object a line (target, payload, concurrency, seconds), warms up, prints "warm", waits for
another line, measures, and prints one JSON object.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import uvloop

from . import frame_links, grpc_links, smelt_links, stream_links, zmq_links
from .payloads import Handler, answer, request_of


class Link(Protocol):
    """The gateway's half of a transport."""

    async def call(self, request: bytes) -> bytes:
        """Sends a request's bytes to the replica and returns the answer's."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A transport: what the replica serves and what the gateway opens."""

    serve: Callable[[Handler, str], Awaitable[None]]
    connect: Callable[[str], Awaitable[Link]]


def _frames(peer: type[frame_links._Peer]) -> Kind:
    return Kind(serve=partial(frame_links.serve, peer), connect=partial(frame_links.connect, peer))


KINDS: dict[str, Kind] = {
    "grpc-unary": Kind(serve=grpc_links.serve_unary, connect=grpc_links.connect_unary),
    "grpc-stream": Kind(serve=grpc_links.serve_stream, connect=grpc_links.connect_stream),
    "zmq": Kind(serve=zmq_links.serve, connect=zmq_links.connect),
    "streams": Kind(serve=stream_links.serve, connect=stream_links.connect),
    "protocol": _frames(frame_links.FramePeer),
    "buffered": _frames(frame_links.BufferedFramePeer),
    "smelt": Kind(serve=smelt_links.serve, connect=smelt_links.connect),
}


async def _until_stdin_ends() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def replica(link: str, address: str) -> None:
    """Runs the no-op model behind a transport."""
    await KINDS[link].serve(answer, address)
    await _until_stdin_ends()


async def gateway(link: str, address: str, front: str) -> None:
    """Runs a gRPC front that forwards each request's bytes over a transport."""
    connection = await KINDS[link].connect(address)
    await grpc_links.serve_unary(connection.call, front)  # type: ignore[arg-type]
    await _until_stdin_ends()


async def load(link: Link, request: bytes, concurrency: int, seconds: float) -> dict[str, float]:
    """Keeps `concurrency` requests in flight for `seconds`; latencies in milliseconds."""
    latencies_ms: list[float] = []
    begin = time.perf_counter()

    async def worker() -> None:
        while (sent := time.perf_counter()) - begin < seconds:
            await link.call(request)
            latencies_ms.append((time.perf_counter() - sent) * 1e3)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    elapsed_s = time.perf_counter() - begin
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    count = len(latencies_ms)
    return {"count": count, "rps": count / elapsed_s, "p50_ms": cuts[49], "p99_ms": cuts[98]}


async def client() -> None:
    """Runs one measurement for each line of standard input."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        request, concurrency = request_of(order["payload"]), order["concurrency"]
        # A channel keeps the pace it happens to start with, so each cell gets a new one.
        async with grpc_links.channel_to(order["target"]) as channel:
            link = grpc_links.UnaryLink(channel)
            await load(link, request, concurrency, order["seconds"] / 5)
            print("warm", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            result = await load(link, request, concurrency, order["seconds"])
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    uvloop.run({"replica": replica, "gateway": gateway, "client": client}[role](*arguments))
