"""One bucket beside those that `smelt buckets` proposes by the traffic, on the same requests.

    python -m tests.benchmarks.padding.buckets FOLDER [--kind K] [--precision P] [--outstanding N]

MiniLM with seeded weights, kind `xla` or, on a GPU, `inductor`: these compute the largest sizes of
a bucket. An engine of one bucket (32 rows of up to 512 tokens) is built and timed. It serves a
round of log-normal lengths (see `subject`) through the real batcher; what it saw, lengths and rows
of batches, goes to the command's own advice. An engine of the buckets that are proposed is built,
and both serve the same requests in turns, other ones than those before: a ratio is the median
over rounds of the ratio within the round, so that other work on the machine meets both sides.
Nothing is proven here; the answers of both sides are compared.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.cli.planning.curves import Curve
from services.cli.sizes.bucket_advice import SizeCounts
from services.cli.sizes.buckets import advice_document
from services.cli.sizes.measured_cost import MeasuredCost
from services.cli.sizes.observed_sizes import ObservedSizes
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket
from services.engines.device.device_probe import probe_device
from services.engines.loader import engine_class
from services.replica.batching.run_shapes import elements_of
from services.replica.engine.loaded_engine import RunningEngine
from services.telemetry.buckets import BATCH_BUCKETS
from tests.benchmarks.cpu.unproven import built
from tests.benchmarks.padding.serving import Side, end_round, serve, side_of
from tests.benchmarks.padding.subject import call_of, calls, recipe
from tests.quick_worker import quick_worker, wanted_keys
from tests.unit.services.replica.toy_batcher import executor_of

NUM_CALLS_SEEN = 512
_NUM_TIMED = 5


def main(arguments: list[str]) -> int:
    """Build, serve and print; the exit code is 0 when padding is halved at least."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", type=EngineKind, default=EngineKind.XLA)
    parser.add_argument("--precision", type=Precision, default=Precision.FP32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--num", type=int, default=0, help="most buckets to propose")
    parser.add_argument("--outstanding", type=int, default=64, help="requests at any time")
    parser.add_argument("--calls", type=int, default=192, help="in a round, for each side")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    worker = quick_worker(given.folder)
    asked = recipe().model_copy(
        update={"kinds": (given.kind,), "precisions": (given.precision,), "ranking": None}
    )
    options = AddOptions(recipe=asked, folder=given.folder)
    source = "tests.benchmarks.padding.subject:seeded_embedder"
    version = add_model(worker.registry, "minilm", source, options, Steps(is_quiet=True))
    device = probe_device()
    print(f"{given.kind} {given.precision}, {device.name} {device.generation}", flush=True)
    return asyncio.run(_compare(worker, version, given))


async def _compare(worker: WorkerContext, version: ModelVersion, given: argparse.Namespace) -> int:
    before = _served(worker, version, "before", given.threads)
    cost = await _timed(version, before)
    seen = calls(NUM_CALLS_SEEN, seed=1)
    await serve(before, seen[: given.calls], given.outstanding)
    lengths = [call.sizes["sequence"] for call in seen]
    counts = {length: float(lengths.count(length)) for length in lengths}
    observed = ObservedSizes(batches=_as_counted(before), is_sampled=True)
    observed.dims["sequence"] = SizeCounts(counts, sum(lengths))
    advice = advice_document(version, observed, given.num, lambda _: cost)
    _print_advice(advice["dimensions"]["sequence"])
    buckets = tuple(Bucket.model_validate(each) for each in advice["recipe"]["buckets"])
    changed = version.recipe.model_copy(update={"buckets": buckets})
    next_version = worker.registry.add_changed_version(version, {"recipe": changed})
    sides = [before, _served(worker, next_version, "after", given.threads)]
    await _timed(next_version, sides[1])
    for number in range(-1, given.rounds):  # costs are met in one that does not count
        mixed = calls(given.calls, seed=number + 10)
        turns = sides if number % 2 else sides[::-1]
        answers = [await serve(side, mixed, given.outstanding) for side in turns]
        end_round(sides, answers, number)
    for side in sides:
        await side.batcher.close()
    return _print(sides)


def _as_counted(side: Side) -> dict[int, float]:
    """Runs by their rows, as the metric counts them."""
    found: dict[int, float] = {}
    for rows, runs in side.batches.items():
        bound = round(next(each for each in BATCH_BUCKETS if each >= rows))
        found[bound] = found.get(bound, 0.0) + runs
    return found


def _served(worker: WorkerContext, version: ModelVersion, name: str, num_threads: int) -> Side:
    """An engine of the version, behind a batcher of its own."""
    (key,) = wanted_keys(version, Wanted(), worker)
    began_s = time.monotonic()
    spec = built(worker, version, key, worker.settings.cache_dir / name, num_threads)
    engine: RunningEngine = engine_class(key.kind).load(spec)
    took_s = time.monotonic() - began_s
    print(f"{name}: {len(version.buckets)} buckets in {took_s:.0f} s", flush=True)
    executor = executor_of(engine, version.buckets, pads_to_largest=True)
    return side_of(name, version, executor)


async def _timed(version: ModelVersion, side: Side) -> MeasuredCost:
    """Runs of each bucket, and the least that they took."""
    rng = np.random.default_rng(0)
    executor = side.executor
    points = []
    for sizes in ({dim: span.max for dim, span in b.dims.items()} for b in version.buckets):
        one = call_of(sizes["sequence"], rng).inputs
        inputs = {name: np.repeat(array, sizes["batch"], axis=0) for name, array in one.items()}
        took_s = []
        for _ in range(_NUM_TIMED):
            began_s = time.perf_counter()
            await executor.call(executor.loaded.engine.run, inputs)
            took_s.append(time.perf_counter() - began_s)
        points.append((elements_of(sizes), min(took_s)))
        print(f"  {sizes}: {1e3 * min(took_s):.2f} ms", flush=True)
    curve = Curve.through("engine", points, pads_to_largest=True)
    assert curve
    return MeasuredCost(curve=curve, name="engine")


def _print_advice(advice: dict[str, Any]) -> None:
    before, after = (f"{rate:.1f}" for rate in advice["rows_per_s"])
    shapes = ", ".join(f"{shape.rows} x {shape.size}" for shape in advice["shapes_proposed"])
    print(f"\nproposed, rows x tokens: {shapes}")
    print(f"padding of lengths {advice['waste_now']:.1%}, then {advice['waste_proposed']:.1%}")
    print(f"rows/s by the timings {before}, then {after}: {advice['speedup']:.2f} times")


def _print(sides: list[Side]) -> int:
    before, after = sides
    print("\n| buckets | requests/s | times before | rows a batch | padding | for each real one |")
    print("|---|---:|---:|---:|---:|---:|")
    for side in sides:
        ratio = median(a / b for a, b in zip(side.rates, before.rates, strict=True))
        rows = sum(rows * runs for rows, runs in side.batches.items()) / side.runs
        print(
            f"| {side.name} | {median(side.rates):.1f} | {ratio:.2f} | {rows:.1f} "
            f"| {side.waste:.1%} | {side.ran / side.real - 1:.2f} |"
        )
    for side in sides:
        print(f"{side.name}: batches by rows {dict(sorted(side.batches.items()))}")
    return 0 if after.ran / after.real - 1 <= (before.ran / before.real - 1) / 2 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
