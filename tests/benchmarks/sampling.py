"""What sampling costs a replica: throughput, 99th percentile and processor time, on beside off.

    python -m tests.benchmarks.sampling [--pairs N] [--seconds S] [--real-time]

Two replicas of the smallest model are in this process; callers ask them without a network, so a
request is as cheap as it can be, and a share of it as large. They take turns, in a new order for
each pair; the ratio of a pair is free of what changes from minute to minute. `often` writes 20
rows every 2 s, which is 50 times the rate by default. With `--real-time` a pair goes before all
other processes of the machine (SCHED_RR; it takes root), which have as long after it.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from timeit import repeat, timeit

from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.replica.replica import Replica
from services.replica.request.infer_call import InferCall
from services.replica.sampling.sampler import Sampler
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.benchmarks.dataplane.alone import preferred
from tests.benchmarks.joint_runs import print_machine
from tests.integration.replica.published import RECIPE, Shelf, ids_of, request_of
from tests.unit.services.replica.models import text_model

CALLERS = (1, 32)
# Two replicas that are alike differ too: how much is what `off again` is for.
RATES = {"off again": None, "by default": Sampling(), "often": Sampling(rate_per_s=10, window_s=2)}
# Lengths differ, as do those of real requests: each has a head of its own to look up.
BODIES = [request_of(ids_of(1, length)) for length in range(1, 17)]
Figures = tuple[float, float, float]


async def measure(num_pairs: int, seconds: float, *, is_real_time: bool) -> None:
    """Print a line for each rate and number of callers."""
    with tempfile.TemporaryDirectory() as folder:
        servers = {"off": await _started(Path(folder) / "off", None)}
        for name, sampling in RATES.items():
            servers[name] = await _started(Path(folder) / name.replace(" ", "-"), sampling)
        print("| sampling | callers | requests/s | p99 | loop us | us, off |")
        print("|---|---:|---:|---:|---:|---:|")
        for name in RATES:
            for callers in CALLERS:
                pairs = [
                    await _pair(
                        [servers[each].replica for each in ("off", name)],
                        partial(_round, callers, seconds),
                        preferred([os.getpid()], seconds) if is_real_time else nullcontext(),
                    )
                    for _ in range(num_pairs)
                ]
                offs, ons = (
                    list(zip(*figures, strict=True)) for figures in zip(*pairs, strict=True)
                )
                shares = " | ".join(map(_share, offs, ons))
                off_us = median(offs[2])
                print(f"| {name} | {callers} | {shares} | {off_us:.1f} |", flush=True)
        for server in servers.values():
            await server.stop(0)
        with preferred([os.getpid()], seconds) if is_real_time else nullcontext():
            alone_us = _offer_us(Path(folder))
        print(f"one of 32 calls, of which nothing is taken: {alone_us:.2f} us")


async def _started(folder: Path, sampling: Sampling | None) -> ReplicaServer:
    await asyncio.to_thread(folder.mkdir)
    shelf = Shelf(folder, RECIPE.model_copy(update={"sampling": sampling}))
    shelf.publish_model()
    shelf.publish_engine()
    settings = ReplicaSettings(
        store_url=shelf.store_url,
        cache_dir=folder / "cache",
        model="toy",
        socket_dir=folder,
        num_threads=1,
    )
    while True:
        server = ReplicaServer(settings, NullRecorder())
        await server.start()
        # A replica that found its engine slow, as it loaded on a busy machine, runs it on a thread.
        if server.replica.loaded and server.replica.loaded.is_brief:
            return server
        await server.stop(0)


def _offer_us(folder: Path) -> float:
    """Microseconds of what each request does more, the least of some repetitions."""
    model = text_model()
    registry = Registry(open_store("memory:"), folder)
    sampler = Sampler(model, Sampling(), registry, NullRecorder())
    ids = ids_of(1, 16)
    sizes = {"batch": 1, "sequence": 16}
    call = InferCall(inputs={"ids": ids, "mask": ids}, sizes=sizes, outputs=())
    # So many first that hardly one is taken.
    calls = [call] * 32
    timeit(lambda: sampler.offer(calls), number=6_000)
    return min(repeat(lambda: sampler.offer(calls), number=1_000)) * 1000 / len(calls)


async def _pair(
    replicas: Sequence[Replica],
    measured: Callable[[Replica], Awaitable[Figures]],
    alone: AbstractContextManager[None],
) -> list[Figures]:
    with alone:
        found = {each: await measured(each) for each in random.sample(replicas, len(replicas))}
    return [found[each] for each in replicas]


async def _round(callers: int, seconds: float, replica: Replica) -> Figures:
    """Requests in a second, 99th percentile in seconds, the loop's microseconds of each."""
    await asyncio.gather(*(replica.infer(body) for body in BODIES))
    took_s: list[float] = []
    began_s = time.perf_counter()
    loop_s = time.thread_time()
    await asyncio.gather(
        *(_caller(replica, first, began_s + seconds, took_s) for first in range(callers))
    )
    rate = len(took_s) / (time.perf_counter() - began_s)
    loop_us = 1e6 * (time.thread_time() - loop_s) / len(took_s)
    return rate, sorted(took_s)[len(took_s) * 99 // 100], loop_us


async def _caller(replica: Replica, first: int, until_s: float, took_s: list[float]) -> None:
    number = first
    while (began_s := time.perf_counter()) < until_s:
        await replica.infer(BODIES[number % len(BODIES)])
        took_s.append(time.perf_counter() - began_s)
        number += 1


def _share(off: Sequence[float], on: Sequence[float]) -> str:
    """The median of the pairs' ratios, as a change, with its interval of 95 % by resampling."""
    ratios = [after / before - 1 for before, after in zip(off, on, strict=True)]
    drawn = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{median(ratios):+.1%} ({drawn[50]:+.1%} to {drawn[1949]:+.1%})"


def main(arguments: list[str]) -> int:
    """Measure with the options that were given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--real-time", action="store_true")
    given = parser.parse_args(arguments)
    print_machine()
    asyncio.run(measure(given.pairs, given.seconds, is_real_time=given.real_time))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
