"""Soaks a gateway and its replicas: does memory grow, is any answer wrong, does anything hang?

    python -m tests.benchmarks.soak [--minutes 10] [--clients 12] [--write FILE.md]

Requests of one token to a megabyte, cancelled, late and hostile ones, while one of two replicas is
stopped or killed every ten seconds and started again. Memory is that of the gateway and of the
replica that stays; growth is from the end of the warm-up, a third of the time, to the end, each
as the median of a tenth of all samples. The status is 1 for a fault or growth beyond 5 %.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.benchmarks.dataplane.__main__ import versions
from tests.benchmarks.soak.fleet import SoakFleet, soak_fleet
from tests.benchmarks.soak.load import Load

MAX_GROWTH = 0.05
_RESTART_EVERY_S = 10.0
_SAMPLE_EVERY_S = 0.5
Memory = dict[str, list[float]]


async def soak(minutes: float, num_clients: int) -> tuple[Load, Memory, int]:
    """What clients saw, memory in MiB over time by process, and the number of restarts."""
    with tempfile.TemporaryDirectory() as folder:
        async with soak_fleet(Path(folder)) as fleet:
            load, memory, stop = Load(fleet.address), Memory(), asyncio.Event()
            asyncio.get_running_loop().call_later(60 * minutes, stop.set)
            _, num_restarts, _ = await asyncio.gather(
                load.run(num_clients, stop), _restart(fleet, stop), _sample(fleet, memory, stop)
            )
            return load, memory, num_restarts


async def _restart(fleet: SoakFleet, stop: asyncio.Event) -> int:
    number = 0
    while not await _is_set_within(stop, _RESTART_EVERY_S):
        await fleet.restart(is_killed=number % 2 == 1)
        number += 1
    return number


async def _sample(fleet: SoakFleet, memory: Memory, stop: asyncio.Event) -> None:
    while not await _is_set_within(stop, _SAMPLE_EVERY_S):
        for name, found in fleet.memory_mib().items():
            memory.setdefault(name, []).append(found)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def growth(samples: Sequence[float]) -> tuple[float, float]:
    """Memory after the warm-up and in the end."""
    tenth, warm = max(1, len(samples) // 10), len(samples) // 3
    return statistics.median(samples[warm : warm + tenth]), statistics.median(samples[-tenth:])


def report(load: Load, memory: Memory, minutes: float, num_restarts: int) -> str:
    """Tables of outcomes and memory."""
    lines = ["| clients | ended | how often |", "|---|---|---:|"]
    lines += [f"| {what} | {code} | {n:,} |" for (what, code), n in sorted(load.outcomes.items())]
    lines += [
        "",
        "| process | after warm-up MiB | in the end MiB | growth |",
        "|---|---:|---:|---:|",
    ]
    for name, samples in memory.items():
        before, after = growth(samples)
        lines.append(f"| {name} | {before:.1f} | {after:.1f} | {after / before - 1:+.1%} |")
    total = load.outcomes.total()
    lines += [
        "",
        f"{total:,} requests in {minutes:g} minutes; {num_restarts} restarts of a replica;",
    ]
    lines += [f"wrong answers, wrong codes and hangs: {len(load.faults)}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Read the arguments, soak, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    load, memory, num_restarts = asyncio.run(soak(arguments.minutes, arguments.clients))
    text = f"{versions()}\n\n{report(load, memory, arguments.minutes, num_restarts)}"
    print(text)
    for fault in load.faults[:20]:
        print(fault)
    if arguments.write:
        arguments.write.write_text(text)
    grows = [after / before - 1 for before, after in map(growth, memory.values())]
    return int(bool(load.faults) or max(grows) > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
