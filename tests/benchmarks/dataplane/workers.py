"""Measures one gateway with one and with several workers, the load generator pinned apart.

    python -m tests.benchmarks.dataplane.workers [--workers 1 2] [--rounds 5] [--seconds 2]
        [--clients 1] [--per-worker] [--replicas 1] [--load-cores 0] [--apart]
        [--write FILE.md]

A gateway runs for each number of workers, in front of the same replicas (`backend.py`), asked for
the no-op model of 2 KB. Load comes over many connections, because the kernel gives each of them
to one worker. Clients and replicas run on the cores that are named; the workers run on all, so
that on two cores a second worker has only what the load generator leaves: read the CPU time for
each request, too. A worker that has more in flight reads and writes more at once, and takes less
for each: `--per-worker` keeps what each of them has in flight, whatever their number.

`--apart` adds what the machine itself allows: as many gateways of one worker as the last number
says, each with a replica and clients of its own, so that nothing is shared but the cores.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import grpc
import psutil
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.telemetry.ready import wait_ready
from tests.benchmarks.dataplane.__main__ import versions
from tests.benchmarks.dataplane.backend import HOST_ID
from tests.benchmarks.dataplane.launch import line_of
from tests.benchmarks.dataplane.payloads import request_of
from tests.benchmarks.transport import grpc_links
from tests.benchmarks.transport.fleet import MALLOC_ENV
from tests.benchmarks.transport.processes import load

PAYLOAD = "tok"
NUM_CONNECTIONS, NUM_EACH = 8, 8


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement: requests a second, and microseconds of the gateway's CPU for each."""

    rps: float
    gateway_us: float


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A gateway that serves; `pids` are those of its workers."""

    target: str
    pids: Sequence[int]

    def cpu_s(self) -> float:
        """User plus system CPU seconds of all workers so far."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids)


async def client() -> None:
    """Runs one measurement for each line of standard input, on new connections."""
    request = request_of(PAYLOAD)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        channels = [grpc_links.channel_to(order["target"]) for _ in range(NUM_CONNECTIONS)]
        links = [grpc_links.UnaryLink(channel) for channel in channels]
        for seconds in (order["seconds"] / 5, order["seconds"]):
            results = await asyncio.gather(
                *(load(link, request, NUM_EACH, seconds) for link in links)
            )
            print(
                json.dumps({key: sum(r[key] for r in results) for key in ("count", "rps")}),
                flush=True,
            )
        await asyncio.gather(*(channel.close(None) for channel in channels))


@contextmanager
def _backend(num_replicas: int, load_cores: Sequence[int]) -> Iterator[str]:
    """The address of a controller that lists so many replicas."""
    own = f"tests.benchmarks.dataplane.backend {num_replicas}"
    with _started(own, load_cores) as process:
        yield line_of(process)


@contextmanager
def _gateway(controller: str, num_workers: int) -> Iterator[Gateway]:
    """A gateway that has so many workers and has connected to its replica."""
    read_fd, write_fd = os.pipe()
    settings = {
        "workers": num_workers,
        "grpc_port": 0,
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
        target = f"127.0.0.1:{wait_ready(read_fd, 60, 'gateway')['grpc_port']}"
        asyncio.run(_until_served(target))
        children = [child.pid for child in psutil.Process(process.pid).children()]
        yield Gateway(target=target, pids=children if num_workers > 1 else [process.pid])
    finally:
        process.terminate()
        process.wait(60)


async def _until_served(target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=PAYLOAD)
        ):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return


@contextmanager
def _started(module: str, cores: Sequence[int]) -> Iterator["subprocess.Popen[str]"]:
    """A process of ours on these cores, that keeps freed memory as Smelt's own do."""
    process = subprocess.Popen(
        [sys.executable, "-m", *module.split()],
        env=dict(os.environ) | MALLOC_ENV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),  # its children, too
    )
    try:
        yield process
    finally:
        process.communicate()  # the end of its input is its end


@contextmanager
def _apart(num: int, load_cores: Sequence[int]) -> Iterator[list[Gateway]]:
    """So many gateways of one worker, each before a replica of its own."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(_gateway(stack.enter_context(_backend(1, load_cores)), 1))
            for _ in range(num)
        ]


def _answer(process: "subprocess.Popen[str]") -> dict[str, float]:
    found: dict[str, float] = json.loads(line_of(process))
    return found


def _measure(
    clients: Sequence["subprocess.Popen[str]"], gateways: Sequence[Gateway], seconds: float
) -> Sample:
    for process, gateway in zip(clients, cycle(gateways), strict=False):
        assert process.stdin is not None
        print(
            json.dumps({"target": gateway.target, "seconds": seconds}),
            file=process.stdin,
            flush=True,
        )
    for process in clients:
        _answer(process)  # warm
    before_s = sum(gateway.cpu_s() for gateway in gateways)
    results = [_answer(process) for process in clients]
    cpu_us = (sum(gateway.cpu_s() for gateway in gateways) - before_s) * 1e6
    return Sample(
        rps=sum(result["rps"] for result in results),
        gateway_us=cpu_us / sum(result["count"] for result in results),
    )


def run(arguments: argparse.Namespace) -> dict[str, list[Sample]]:
    """Starts everything, then visits what is compared once a round, in a new order."""
    with ExitStack() as stack:
        controller = stack.enter_context(_backend(arguments.replicas, arguments.load_cores))
        cells = {
            str(num): (num, [stack.enter_context(_gateway(controller, num))])
            for num in arguments.workers
        }
        most = max(arguments.workers)
        if arguments.apart:
            apart = stack.enter_context(_apart(most, arguments.load_cores))
            cells |= {"1 apart": (1, apart[:1]), f"{most} apart": (most, apart)}
        own = "tests.benchmarks.dataplane.workers client"
        clients = [
            stack.enter_context(_started(own, arguments.load_cores))
            for _ in range(_num_clients(arguments, most))
        ]
        samples: dict[str, list[Sample]] = {name: [] for name in cells}
        for _ in range(arguments.rounds):
            for name in random.sample(list(cells), len(cells)):
                num, gateways = cells[name]
                asking = clients[: _num_clients(arguments, num)]
                samples[name].append(_measure(asking, gateways, arguments.seconds))
    return samples


def _num_clients(arguments: argparse.Namespace, num_workers: int) -> int:
    """So many load a gateway: always the same, or as many for each worker."""
    num: int = arguments.clients * (num_workers if arguments.per_worker else 1)
    return num


def table(samples: Mapping[str, Sequence[Sample]]) -> str:
    """Medians, and medians of ratios to the first row of its kind within a round."""
    first = next(iter(samples.values()))
    lines = [
        "| workers | RPS | RPS / first | gateway CPU us | CPU / first |",
        "|---:|---:|---:|---:|---:|",
    ]
    for name, own in samples.items():
        if name == "1 apart":
            first = own
        pairs = list(zip(own, first, strict=True))
        lines.append(
            f"| {name} | {statistics.median(each.rps for each in own):.0f} "
            f"| {statistics.median(one.rps / base.rps for one, base in pairs):.2f} "
            f"| {statistics.median(each.gateway_us for each in own):.0f} "
            f"| {statistics.median(one.gateway_us / base.gateway_us for one, base in pairs):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reads the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a cell, without its warm-up")
    parser.add_argument("--clients", type=int, default=1, help="processes of the load generator")
    parser.add_argument(
        "--per-worker", action="store_true", help="so many clients for each worker, not in all"
    )
    parser.add_argument("--replicas", type=int, default=1, help="processes behind the gateway")
    parser.add_argument("--load-cores", type=int, nargs="+", default=[0], help="for load")
    parser.add_argument("--apart", action="store_true", help="also gateways that share nothing")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    samples = run(arguments)
    text = (
        f"{versions()}; medians of {arguments.rounds} rounds of {arguments.seconds:g} s; "
        f"{arguments.clients} client(s) {'for each worker' if arguments.per_worker else 'in all'} "
        f"of {NUM_CONNECTIONS} connections, "
        f"{arguments.replicas} replica(s), load on cores "
        f"{arguments.load_cores} of {os.cpu_count()}.\n\n{table(samples)}"
    )
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] == ["client"]:
        uvloop.run(client())
    else:
        main()
