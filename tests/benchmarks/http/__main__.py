"""Measures HTTP beside gRPC at one gateway: KServe v2 in binary, and as JSON.

    python -m tests.benchmarks.http [--rounds 9] [--seconds 1] [--concurrency 1 32]

One gateway serves both ports in front of one replica that answers as the no-op model does
(`dataplane/backend.py`). In each round each protocol is asked in turn, in a new order, and ratios
are medians of ratios within a round, as the machine is shared. gRPC's client is grpc.aio on one
connection; HTTP's is `http_load.py`, a connection for each request in flight, which costs less: so
the CPU time of the gateway for each request says more than the rates do.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psutil
import uvloop

from services.contracts.kserve.tensors import array_from_bytes
from services.pb.open_inference_v2_pb2 import ModelInferRequest
from services.telemetry.ready import wait_ready
from tests.benchmarks.dataplane.backend import HOST_ID, MODEL
from tests.benchmarks.dataplane.launch import ended, line_of, start_module, until_answers
from tests.benchmarks.dataplane.payloads import request_of
from tests.benchmarks.http.http_load import load as http_load
from tests.benchmarks.transport import grpc_links
from tests.benchmarks.transport.processes import load as grpc_load

PAYLOADS: Final = {"2 KB": "tok", "602 KB": "big"}
Measure = Callable[[int, float], Coroutine[Any, Any, float]]


def http_request(payload: str, *, is_binary: bool) -> bytes:
    """The request of a payload as bytes of HTTP; its answer comes in the same form."""
    message = ModelInferRequest.FromString(request_of(payload))
    (tensor,), (raw,) = message.inputs, message.raw_input_contents
    each: dict[str, Any] = {"name": "x", "datatype": tensor.datatype, "shape": list(tensor.shape)}
    body = b""
    if is_binary:
        each["parameters"] = {"binary_data_size": len(raw)}
        body = raw
    else:
        each["data"] = array_from_bytes(raw, tensor.datatype, tensor.shape).ravel().tolist()
    document = {"id": "7", "inputs": [each], "parameters": {"binary_data_output": is_binary}}
    head = json.dumps(document).encode()
    fields = (
        f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(head) + len(body)}\r\n"
    )
    if is_binary:
        fields += f"Inference-Header-Content-Length: {len(head)}\r\n"
    return fields.encode() + b"\r\n" + head + body


@contextmanager
def _gateway(controller: str) -> Iterator[tuple[dict[str, int], psutil.Process]]:
    read_fd, write_fd = os.pipe()
    settings = {
        "grpc_port": 0,
        "http_port": 0,
        "metrics_port": 0,
        "ready_fd": write_fd,
        "controller": controller,
        "host_id": HOST_ID,
        "parent_pid": os.getpid(),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "services.gateway"],
        env=dict(os.environ) | {f"SMELT_GATEWAY_{k.upper()}": str(v) for k, v in settings.items()},
        pass_fds=(write_fd,),
        stderr=subprocess.DEVNULL,
    )
    os.close(write_fd)
    try:
        yield wait_ready(read_fd, 60, "gateway"), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _measures(ports: dict[str, int], payload: str) -> dict[str, Measure]:
    async def grpc(num: int, seconds: float) -> float:
        request = _renamed(request_of(payload))
        async with grpc_links.channel_to(f"127.0.0.1:{ports['grpc_port']}") as channel:
            link = grpc_links.UnaryLink(channel)
            await grpc_load(link, request, num, seconds / 5)
            return (await grpc_load(link, request, num, seconds))["rps"]

    def http(*, is_binary: bool) -> Measure:
        request = http_request(payload, is_binary=is_binary)
        return lambda num, seconds: http_load(ports["http_port"], (request,), num, seconds)

    found = {"gRPC": grpc, "HTTP binary": http(is_binary=True)}
    return found | ({"HTTP JSON": http(is_binary=False)} if payload == "tok" else {})


def _renamed(request: bytes) -> bytes:
    message = ModelInferRequest.FromString(request)
    message.model_name = MODEL
    return message.SerializeToString()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(rounds: int, seconds: float, concurrency: list[int]) -> None:
    """Print a table."""
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    backend = start_module(
        sys.executable, "tests.benchmarks.dataplane.backend", stdout=subprocess.PIPE
    )
    with ended(backend), _gateway(line_of(backend)) as (ports, process):
        asyncio.run(until_answers(f"127.0.0.1:{ports['grpc_port']}", [MODEL]))
        for _ in range(rounds):
            for label, payload in PAYLOADS.items():
                measures = _measures(ports, payload)
                for num in concurrency:
                    for name in random.sample(list(measures), len(measures)):
                        before_s = _cpu_s(process)
                        rps = uvloop.run(measures[name](num, seconds))
                        cpu_us = (_cpu_s(process) - before_s) / (rps * seconds * 1.2) * 1e6
                        found[label, num, name].append((rps, cpu_us))
    print("| request | in flight | protocol | requests a second | of gRPC's | gateway CPU us |")
    print("|---|---:|---|---:|---:|---:|")
    for (label, num, name), samples in found.items():
        rps = statistics.median(each for each, _ in samples)
        cpu_us = statistics.median(each for _, each in samples)
        pairs = zip(samples, found[label, num, "gRPC"], strict=True)
        ratio = statistics.median(own[0] / grpc[0] for own, grpc in pairs)
        print(f"| {label} | {num} | {name} | {rps:.0f} | {ratio:.2f} | {cpu_us:.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 32])
    given = parser.parse_args()
    measure(given.rounds, given.seconds, given.concurrency)
