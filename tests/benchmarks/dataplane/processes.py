"""The processes of a measurement that are not Smelt's own.

    python -m tests.benchmarks.dataplane.processes plain ADDRESS   the floor: grpc.aio alone
    python -m tests.benchmarks.dataplane.processes bare ADDRESS    grpc.aio, and nothing behind it
    python -m tests.benchmarks.dataplane.processes serve ADDRESS   Ray Serve, its proxy by flags
    python -m tests.benchmarks.dataplane.processes client

Servers print one JSON object, the ids of the processes that requests pass, and run until
their standard input ends. The client is that of the transport benchmark: it reads one JSON
object a line, warms up, prints "warm", waits for a line, measures, prints one JSON object.
"""

import asyncio
import json
import os
import sys
from typing import Any

import psutil
import uvloop

from tests.benchmarks.dataplane.launch import free_port, until_answers
from tests.benchmarks.dataplane.payloads import PAYLOADS, answer, check_answer, request_of
from tests.benchmarks.transport import grpc_links
from tests.benchmarks.transport.payloads import Handler
from tests.benchmarks.transport.processes import load

# More than any concurrency that is measured: nothing waits in front of the replica.
MAX_ONGOING = 512


async def plain(address: str, handler: Handler = answer) -> None:
    """Serves the no-op model with grpc.aio on uvloop."""
    await grpc_links.serve_unary(handler, address)
    _say_ready({"replica": [os.getpid()]})
    await asyncio.to_thread(sys.stdin.read)


async def bare(address: str) -> None:
    """Serves the right answers, made beforehand: what is left is what gRPC itself costs."""
    answers = {len(request): await answer(request) for request in map(request_of, PAYLOADS)}

    async def look_up(data: bytes | bytearray) -> bytes:
        return answers[len(data)]

    await plain(address, look_up)


def serve(address: str) -> None:
    """Serves the no-op model as a Ray Serve deployment behind the proxy that the flags choose."""
    import ray
    from ray import serve as ray_serve
    from ray.serve.config import gRPCOptions

    from tests.benchmarks.dataplane.serve_noop import Noop

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="warning")
    add = "tests.benchmarks.dataplane.serve_noop.add_infer"
    port = int(address.rpartition(":")[2])
    # Serve opens an HTTP proxy beside it whatever one says; nothing calls that one.
    ray_serve.start(
        http_options={"port": free_port(), "location": "HeadOnly"},
        grpc_options=gRPCOptions(port=port, grpc_servicer_functions=[add]),
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    deployment = ray_serve.deployment(max_ongoing_requests=MAX_ONGOING)(Noop)
    ray_serve.run(deployment.bind(), name="noop")
    # HAProxy is started anew with each change of what stands behind it.
    asyncio.run(until_answers(address, PAYLOADS))
    _say_ready(_ray_processes())
    sys.stdin.read()
    ray_serve.shutdown()
    ray.shutdown()


def _ray_processes() -> dict[str, list[int]]:
    """Those that a request passes: proxy, replica, and raylet, which holds large arguments."""
    names = {"ProxyActor": "gateway", "ServeReplica": "replica", "raylet/raylet": "replica"}
    found: dict[str, list[int]] = {"gateway": [], "replica": []}
    haproxies = []
    for child in psutil.Process().children(recursive=True):
        command = " ".join(child.cmdline()[:1])
        haproxies += [child] if command.endswith("/haproxy") else []
        for part, role in names.items():
            if part in command:
                found[role].append(child.pid)
    # Those that were replaced end when they like.
    found["gateway"] += [p.pid for p in sorted(haproxies, key=psutil.Process.create_time)[-1:]]
    return found


def _say_ready(pids: dict[str, list[int]]) -> None:
    print(json.dumps(pids), flush=True)


async def client() -> None:
    """Runs one measurement for each line of standard input."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        request, concurrency = request_of(order["payload"]), order["concurrency"]
        # A channel keeps the pace it happens to start with, so each cell gets a new one.
        async with grpc_links.channel_to(order["target"]) as channel:
            link = grpc_links.UnaryLink(channel)
            check_answer(order["payload"], await link.call(request))
            await load(link, request, concurrency, order["seconds"] / 5)
            print("warm", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            result = await load(link, request, concurrency, order["seconds"])
            print(json.dumps(result), flush=True)


def main() -> None:
    """Runs the role that the command line names."""
    role, *arguments = sys.argv[1:]
    if role == "serve":
        serve(*arguments)
    else:
        uvloop.run({"plain": plain, "bare": bare, "client": client}[role](*arguments))


if __name__ == "__main__":
    main()
