"""Measures HTTP servers for Python beside each other: which one the gateway listens with.

    python -m tests.benchmarks.http.servers [--rounds 7] [--seconds 1] [--connections 1 32]

Each server is a process of its own on uvloop and runs the same application as far as its interface
allows: it reads the body, lets the event loop turn once, as a replica's answer does, and answers
130 bytes in KServe's binary form. All run at once and are asked in turn, in a new order each round
by the same client. CPU is user plus system time of the server's process for each request. What is
not installed is left out: granian is no dependency.
"""

import argparse
import asyncio
import importlib.util
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final

import psutil
import uvloop

from tests.benchmarks.dataplane.launch import ended, free_port, line_of, start_module
from tests.benchmarks.http.http_load import load

ANSWER: Final = b'{"outputs":[]}'.ljust(50) + bytes(80)
HEADERS: Final = [
    (b"content-type", b"application/octet-stream"),
    (b"content-length", b"%d" % len(ANSWER)),
    (b"inference-header-content-length", b"50"),
]
SIZES: Final = {"2 KB": 2 << 10, "602 KB": 602_112}
_SELF: Final = "tests.benchmarks.http.servers"


async def _asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = bytearray()
    while True:
        event = await receive()
        body += event["body"]
        if not event["more_body"]:
            break
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def _uvicorn(port: int) -> None:
    import uvicorn

    config = uvicorn.Config(
        _asgi,
        port=port,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
    )
    await uvicorn.Server(config).serve()


async def _aiohttp(port: int) -> None:
    from aiohttp import web

    headers = {name.decode(): value.decode() for name, value in HEADERS}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        await asyncio.sleep(0)
        return web.Response(body=ANSWER, headers=headers)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def _rsgi(scope: Any, protocol: Any) -> None:
    await protocol()
    await asyncio.sleep(0)
    headers = [(name.decode(), value.decode()) for name, value in HEADERS]
    protocol.response_bytes(200, headers, ANSWER)


async def _granian(port: int) -> None:
    from granian.server.embed import Server

    await Server(_rsgi, port=port, log_enabled=False, websockets=False).serve()


SERVERS: Final[dict[str, Callable[[int], Coroutine[Any, Any, None]]]] = {
    "uvicorn": _uvicorn,
    "aiohttp": _aiohttp,
    "granian": _granian,
}


async def _serve(name: str) -> None:
    port = free_port()
    serving = asyncio.create_task(SERVERS[name](port))
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            break
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    serving.cancel()


def _request(num_bytes: int) -> bytes:
    head = (
        "POST /v2/models/tok/infer HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: 180\r\nContent-Length: {num_bytes}\r\n\r\n"
    )
    return head.encode() + bytes(num_bytes)


def measure(rounds: int, seconds: float, connections: list[int]) -> None:
    """Print a table of medians."""
    names = [name for name in SERVERS if importlib.util.find_spec(name)]
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        ports: dict[str, tuple[int, psutil.Process]] = {}
        for name in names:
            process = start_module(sys.executable, _SELF, "--serve", name, stdout=subprocess.PIPE)
            stack.enter_context(ended(process))
            ports[name] = (int(line_of(process)), psutil.Process(process.pid))
        for _ in range(rounds):
            for label, size in SIZES.items():
                for num in connections:
                    for name in random.sample(names, len(names)):
                        port, process_of = ports[name]
                        before = process_of.cpu_times()
                        rps = uvloop.run(load(port, (_request(size),), num, seconds))
                        after = process_of.cpu_times()
                        cpu_s = after.user + after.system - before.user - before.system
                        cpu_us = cpu_s / (rps * seconds * 1.2) * 1e6
                        found.setdefault((label, num, name), []).append((rps, cpu_us))
    print(
        "| request | connections | server | requests a second | CPU us |\n|---|---:|---|---:|---:|"
    )
    for (label, num, name), samples in found.items():
        rps = statistics.median(each for each, _ in samples)
        cpu_us = statistics.median(each for _, each in samples)
        print(f"| {label} | {num} | {name} | {rps:.0f} | {cpu_us:.0f} |")
    print(json.dumps({"rounds": rounds, "seconds": seconds}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", choices=SERVERS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 32])
    given = parser.parse_args()
    if given.serve:
        uvloop.run(_serve(given.serve))
    else:
        measure(given.rounds, given.seconds, given.connections)
