"""Builds and proves every candidate for this device, then times what is proven beside eager.

    python -m tests.benchmarks.cpu MODEL FOLDER [--kind K] [--precision P] [--seconds S]
        [--cpu-time] [--unproven]

The real pipeline builds and proves into a store below FOLDER; a second run finds what is there.
What is to be built may be narrowed. Then all proven engines and the source's own eager fp32 run
in turn in this process: in each round each side is called once to warm up and then three times,
of which the median counts. Other work on the machine slows eager's many small kernels far more
than an engine's few: rounds in which eager took a quarter more than in its best one are left
out. A speed-up is the median over the others of eager's time by the engine's in the same round.
Where other work takes most of the machine, `--cpu-time` counts what all threads of this process
compute; `--unproven` builds in this process, proves nothing, and says how far answers are from
eager's.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib.metadata import version as installed
from pathlib import Path
from statistics import median

import numpy as np
import torch

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import recipe_fault
from services.contracts.store.object_store import open_store
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.loader import engine_class
from tests.benchmarks.cpu.subjects import CALIBRATION_FILE, SUBJECTS, Subject
from tests.benchmarks.cpu.unproven import Call, unproven

NUM_THREADS = 2
EAGER = "eager"
_MIN_ROUNDS = 5
_QUIET = 1.25
Clock = Callable[[], float]


def main(arguments: list[str]) -> int:
    """Build, time and print; the exit code is 0 when every figure is reached."""
    given = _parser().parse_args(arguments)
    torch.set_num_threads(NUM_THREADS)
    subject, folder = SUBJECTS[given.model], given.folder / given.model
    worker = _worker(folder)
    version = _version(worker, subject, given.model, folder)
    sides: dict[str, Call] = {EAGER: _eager(subject)}
    if given.unproven:
        sides |= unproven(worker, version, _wanted(given), NUM_THREADS)
        for sizes in subject.wanted:
            _print_distances(sizes, sides, subject.inputs(sizes))
    else:
        _build(worker, version, given)
        engines = _proven(worker, version)
        sides |= {_name(engine): _loaded(engine, version, worker) for engine in engines}
    _print_machine()
    clock = time.process_time if given.cpu_time else time.perf_counter
    is_reached = [
        _table(sizes, _times(sides, subject.inputs(sizes), given.seconds, clock), wanted)
        for sizes, wanted in subject.wanted.items()
    ]
    return 0 if all(is_reached) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=list(SUBJECTS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", action="append", type=EngineKind, choices=list(EngineKind))
    parser.add_argument("--precision", action="append", type=Precision, choices=list(Precision))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each shape")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--unproven", action="store_true")
    return parser


def _worker(folder: Path) -> WorkerContext:
    folder.mkdir(parents=True, exist_ok=True)
    settings = CompilerSettings(
        store_url=str(folder / "store"),
        cache_dir=folder / "cache",
        num_threads=NUM_THREADS,
        # Timed below, all together; the pipeline's own times are not used.
        benchmark_s=0.1,
        benchmark_iterations=3,
    )
    registry = Registry(open_store(settings.store_url), settings.cache_dir)
    return WorkerContext(registry=registry, settings=settings)


def _version(worker: WorkerContext, subject: Subject, name: str, folder: Path) -> ModelVersion:
    np.savez_compressed(folder / CALIBRATION_FILE, allow_pickle=False, **subject.calibration())
    options = AddOptions(recipe=subject.recipe(), folder=folder)
    return add_model(worker.registry, name, subject.factory, options, Steps(is_quiet=True))


def _build(worker: WorkerContext, version: ModelVersion, given: argparse.Namespace) -> None:
    started = time.monotonic()
    report = build_model(version, _wanted(given), worker)
    print(f"built and proven in {time.monotonic() - started:.0f} s")
    for skipped in report.plans[0].skipped:
        print(f"  {skipped.kind} {skipped.precision} skipped: {skipped.reason}")
    for record in report.records:
        seconds = {str(stage): round(s, 1) for stage, s in record.stage_durations_s.items()}
        what = f"{record.key.kind} {record.key.precision}"
        print(f"  {what} {record.outcome} {seconds} {record.reason[:300]}")


def _wanted(given: argparse.Namespace) -> Wanted:
    return Wanted(kinds=tuple(given.kind or ()), precisions=tuple(given.precision or ()))


def _print_distances(
    sizes: tuple[int, ...], sides: dict[str, Call], inputs: dict[str, Array]
) -> None:
    wanted = np.asarray(sides[EAGER](inputs))
    for name, call in sides.items():
        found = call(inputs)
        (array,) = found.values() if isinstance(found, dict) else (found,)
        distance = np.linalg.norm(array - wanted) / np.linalg.norm(wanted)
        print(f"  {sizes} {name}: rel L2 to eager {distance:.1e}", flush=True)


def _proven(worker: WorkerContext, version: ModelVersion) -> list[PublishedEngine]:
    """Every engine that is proven for this version, of this run or an earlier one."""
    found = [
        engine
        for engine in worker.registry.engines(version.master.digest)
        if engine.proof.outcome is ProofOutcome.PASSED and not recipe_fault(engine, version)
    ]
    newest = {_name(engine): engine for engine in sorted(found, key=lambda e: e.proof.created_at)}
    for name, engine in newest.items():
        checks = engine.proof.checks
        worst = max(check.rel_l2 for check in checks), max(c.cosine_distance for c in checks)
        tasks = [f"{task.name} {task.value:.3f}" for task in engine.proof.tasks]
        print(f"  {name}: rel L2 {worst[0]:.1e}, 1 - cosine {worst[1]:.1e}", *tasks)
    return list(newest.values())


def _name(engine: PublishedEngine) -> str:
    return f"{engine.manifest.key.kind} {engine.manifest.key.precision}"


def _loaded(engine: PublishedEngine, version: ModelVersion, worker: WorkerContext) -> Call:
    registry = worker.registry
    spec = LoadSpec(
        manifest=engine.manifest,
        master=version.master,
        directory=registry.materialise_engine(engine),
        master_path=registry.materialise_master(version.master) / "model.onnx",
        device=probe_device(),
        num_threads=NUM_THREADS,
    )
    return engine_class(engine.manifest.key.kind).load(spec).run


def _eager(subject: Subject) -> Call:
    # Where the engines run; arrays of the host go in and come out, as for engines.
    device = probe_device().parsed_generation.platform.value
    module = subject.model().module.to(device)

    def run(inputs: dict[str, Array]) -> object:
        with torch.inference_mode():
            tensors = (torch.from_numpy(array).to(device) for array in inputs.values())
            return module(*tensors).cpu().numpy()

    return run


def _times(
    sides: dict[str, Call], inputs: dict[str, Array], limit_s: float, clock: Clock
) -> dict[str, list[float]]:
    """Seconds per call by side, in each round in which the machine was quiet."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    ends_at = time.monotonic() + limit_s
    while time.monotonic() < ends_at or len(found[EAGER]) < _MIN_ROUNDS:
        for name, call in sides.items():
            call(inputs)
            found[name].append(median(_seconds(call, inputs, clock) for _ in range(3)))
    least = min(found[EAGER])
    quiet = [i for i, seconds in enumerate(found[EAGER]) if seconds <= _QUIET * least]
    print(f"\n{len(quiet)} of {len(found[EAGER])} rounds were quiet", end="")
    return {name: [seconds[i] for i in quiet] for name, seconds in found.items()}


def _seconds(call: Call, inputs: dict[str, Array], clock: Clock) -> float:
    started = clock()
    call(inputs)
    return clock() - started


def _table(sizes: tuple[int, ...], times: dict[str, list[float]], wanted: float) -> bool:
    speedups = {
        name: median(e / s for e, s in zip(times[EAGER], seconds, strict=True))
        for name, seconds in times.items()
    }
    print(f"\n{'x'.join(map(str, sizes))}, wanted {wanted}")
    print("\n| side | ms | times eager |\n|---|---|---|")
    for name, speedup in sorted(speedups.items(), key=lambda pair: -pair[1]):
        print(f"| {name} | {1e3 * median(times[name]):.2f} | {speedup:.2f} |")
    return max(speedups.values()) >= wanted


def _print_machine() -> None:
    device = probe_device()
    libraries = device.toolchain | {name: installed(name) for name in ("onnx", "transformers")}
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items())
    print(f"\n{device.name}, {device.generation}, {NUM_THREADS} threads; {versions}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
