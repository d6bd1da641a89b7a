"""Padded batching beside exact-shape batching, on lengths as real text has them.

    python -m tests.benchmarks.padding FOLDER [--kind K] [--precision P] [--rounds N]
    python -m tests.benchmarks.padding FOLDER --fallback [--seeded]

The master is published into a store below FOLDER, a second run finds it there; the engines are
those of both kinds that read the master itself (OpenVINO computes in fp32 or bf16), or the
compiled fallback on the device that is here. Weights are the real ones, or seeded. Each side
is the real batcher on the same engine and the same requests: log-normal lengths, median 40
tokens, p99 400, at most 512, a row each, so many outstanding at any time. `exact` joins equal
lengths alone, as for a model without a mask; `padded` is the recipe's policy; `ceiling` gets
requests that all have the mean length, so that nothing needs padding: what no policy can
exceed. Sides take turns within a round; a ratio is the median over rounds of the ratio within
the round, so that other work on the machine meets all sides.
"""

import argparse
import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from compiler_worker.builders.exported_program import export_program
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import NotFoundError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import EngineManifest, ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.loader import engine_class
from services.replica.engine.executor import EngineExecutor
from services.replica.engine.loaded_engine import RunningEngine
from tests.benchmarks.padding.serving import Side, end_round, serve, side_of
from tests.benchmarks.padding.subject import MAX_TOKENS, call_of, calls, recipe
from tests.unit.services.replica.toy_batcher import executor_of

NUM_OUTSTANDING = 64
WANTED_SPEEDUP, WANTED_WASTE = 3.0, 0.25


def main(arguments: list[str]) -> int:
    """Serve and print; the exit code is 0 when every figure is reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", type=EngineKind, default=EngineKind.OPENVINO)
    parser.add_argument("--precision", type=Precision, default=Precision.FP32)
    parser.add_argument("--fallback", action="store_true", help="in place of an engine of a kind")
    parser.add_argument("--seeded", action="store_true", help="no real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=192, help="in a round, for each side")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    registry = Registry(open_store(str(given.folder / "store")), given.folder / "cache")
    version = _version(registry, given.folder, is_seeded=given.seeded)
    engine: RunningEngine
    if given.fallback:
        engine = _fallback(registry, version, given.folder)
        what = f"{engine.mode} fallback"
    else:
        engine = _engine(registry, version, given.kind, given.precision, given.threads)
        what = f"{given.kind} {given.precision}, {given.threads} threads"
    print(f"\n{what}, {probe_device().name} {probe_device().generation}")
    try:
        return asyncio.run(_compare(version, engine, given.rounds, given.calls))
    finally:
        engine.close()


def _version(registry: Registry, folder: Path, *, is_seeded: bool) -> ModelVersion:
    try:
        return registry.model_version("minilm")
    except NotFoundError:
        name = "seeded_embedder" if is_seeded else "long_embedder"
        factory = f"tests.benchmarks.padding.subject:{name}"
        options = AddOptions(recipe=recipe(), folder=folder)
        return add_model(registry, "minilm", factory, options, Steps(is_quiet=True))


def _fallback(registry: Registry, version: ModelVersion, folder: Path) -> FallbackEngine:
    master_path = registry.materialise_master(version.master) / "model.onnx"
    program_path = folder / "fallback.pt2"
    export_program(master_path, version.buckets, program_path)
    return FallbackEngine.load(
        FallbackSpec(
            program_path=program_path,
            master=version.master,
            buckets=version.recipe.buckets,
            device=probe_device(),
        )
    )


def _engine(
    registry: Registry,
    version: ModelVersion,
    kind: EngineKind,
    precision: Precision,
    num_threads: int,
) -> RunningEngine:
    device, master = probe_device(), registry.materialise_master(version.master)
    key = BuildKey(
        master_digest=version.master.digest,
        kind=kind,
        precision=precision,
        buckets=version.recipe.buckets,
        proof_terms="",
        builder_options={},
        generation=device.generation,
        toolchain={str(kind): device.toolchain[str(kind)]},
    )
    manifest = EngineManifest(
        key=key,
        files={},
        inputs=version.master.inputs,
        outputs=version.master.outputs,
        needs_master=True,
        build_duration_s=0.0,
        created_at="2026-01-01T00:00:00.000+00:00",
    )
    spec = LoadSpec(
        manifest=manifest,
        master=version.master,
        directory=master,
        master_path=master / "model.onnx",
        device=device,
        num_threads=num_threads,
    )
    return engine_class(kind).load(spec)


async def _compare(
    version: ModelVersion, engine: RunningEngine, num_rounds: int, num_calls: int
) -> int:
    executor = executor_of(engine, version.recipe.buckets)
    bare = version.recipe.model_copy(update={"inputs": {}})
    exact = version.model_copy(update={"recipe": bare})
    sides = [side_of("exact", exact, executor), side_of("padded", version, executor)]
    sides.append(side_of("ceiling", version, executor))
    for number in range(-1, num_rounds):  # shapes and costs are met in one that does not count
        mixed = calls(num_calls, seed=number + 10)
        mean = round(sum(call.sizes["sequence"] for call in mixed) / len(mixed))
        level = [call_of(mean, np.random.default_rng(number + 10)) for _ in mixed]
        answers = [
            await serve(side, level if side.name == "ceiling" else mixed, NUM_OUTSTANDING)
            for side in sides
        ]
        end_round(sides, answers, number)
    for side in sides:
        await side.batcher.close()
    await _print_shapes(executor)
    executor.thread.end()
    return _print(sides, num_calls)


async def _print_shapes(executor: EngineExecutor) -> None:
    """What a token costs alone and in company, on this engine."""
    rng = np.random.default_rng(0)
    print("\n| rows x tokens | ms | us per token |\n|---|---|---|")
    for rows, length in ((1, 16), (1, 40), (1, 66), (1, 400), (8, 40), (32, 40), (32, 66)):
        one = call_of(length, rng).inputs
        inputs = {name: np.repeat(array, rows, axis=0) for name, array in one.items()}
        took_s = []
        for _ in range(6):
            began_s = time.perf_counter()
            await executor.call(partial(executor.loaded.engine.run, inputs))
            took_s.append(time.perf_counter() - began_s)
        best_s = min(took_s)
        print(f"| {rows} x {length} | {1e3 * best_s:.2f} | {1e6 * best_s / rows / length:.0f} |")


def _print(sides: list[Side], num_calls: int) -> int:
    exact, padded, _ = sides
    print("\n| side | requests/s | times exact | rows a batch | waste |\n|---|---|---|---|---|")
    speedups = {}
    for side in sides:
        pairs = zip(side.rates, exact.rates, strict=True)
        speedups[side.name] = median(rate / other for rate, other in pairs)
        num = num_calls * len(side.rates)
        print(
            f"| {side.name} | {median(side.rates):.1f} | {speedups[side.name]:.2f} "
            f"| {num / side.runs:.1f} | {side.waste:.1%} |"
        )
    waste = padded.waste
    print(
        f"\nwanted {WANTED_SPEEDUP} times exact and waste of {WANTED_WASTE:.0%} at most, "
        f"lengths up to {MAX_TOKENS}"
    )
    return 0 if speedups["padded"] >= WANTED_SPEEDUP and waste <= WANTED_WASTE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
