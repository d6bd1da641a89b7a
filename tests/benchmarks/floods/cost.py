"""What a request costs the server, and how many it answers: two trees in turn.

    python -m tests.benchmarks.floods.cost --before TREE [--rounds 5] [--write FILE.md]

Processor time is the server's alone, so other work on the machine hardly changes it.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import grpc
import uvloop

from tests.benchmarks.floods.serving import served

# Bytes of a request, as a text model's and an image model's; and how many are asked.
LOADS = {2048: 4000, 602_112: 300}
CONCURRENCIES = (1, 32, 128)
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Cost(NamedTuple):
    """Of one load: the server's microseconds for a request, and requests a second."""

    cpu_us: float
    rps: float


async def ask(port: int, size: int, concurrency: int, number: int) -> float:
    """So many requests; the seconds they took."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
        echo = channel.unary_unary("/test.Probe/Echo")
        await echo(b"", wait_for_ready=True)
        body, begin_s = bytes(size), time.monotonic()

        async def many() -> None:
            for _ in range(number // concurrency):
                await echo(body)

        await asyncio.gather(*(many() for _ in range(concurrency)))
        return time.monotonic() - begin_s


def cost(tree: Path, size: int, concurrency: int) -> Cost:
    """Of one load on a new server."""
    number = LOADS[size] // concurrency * concurrency
    with served(tree) as server:
        port = server.port
        uvloop.run(ask(port, size, concurrency, max(number // 10, concurrency)))
        before_s = server.cpu_s()
        took_s = uvloop.run(ask(port, size, concurrency, number))
        return Cost(1e6 * (server.cpu_s() - before_s) / number, number / took_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    trees = {"before": arguments.before, "now": Path.cwd()}
    columns = [f"{what}, {name}" for what in ("CPU us", "requests/s") for name in trees]
    lines = [f"| bytes | at once | {' | '.join(columns)} | CPU, now / before |"]
    lines.append("|---:" * (3 + len(columns)) + "|")
    for size in LOADS:
        for concurrency in CONCURRENCIES:
            found: dict[str, list[Cost]] = {name: [] for name in trees}
            for _ in range(arguments.rounds):
                for name, tree in trees.items():
                    found[name].append(cost(tree, size, concurrency))
            cpu = [statistics.median(each.cpu_us for each in row) for row in found.values()]
            rps = [statistics.median(each.rps for each in row) for row in found.values()]
            cells = [f"{value:.0f}" for value in (size, concurrency, *cpu, *rps)]
            lines.append(f"| {' | '.join(cells)} | {cpu[1] / cpu[0]:.2f} |")
            print(lines[-1], flush=True)
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
