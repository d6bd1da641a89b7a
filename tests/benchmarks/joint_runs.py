"""Says whether joint runs of one model agree, on the machine as it is and with processes beside.

    python -m tests.benchmarks.joint_runs FOLDER [--model MODEL] [--runs N] [--spinning K]

The model is built and proven once into a store below FOLDER. Then its engines are timed
together N times, each time in a process of its own, every second time beside K
processes that only spin. Each run names a winner, or none where its intervals leave doubt. The
exit code is 0 when all runs that name one name the same, and no engine's ratio moves by more than
a tenth between them.
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

from compiler_worker.building.pipeline import build_model
from compiler_worker.devices import main_device
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.settings import CompilerSettings
from compiler_worker.timing.joint import joint_run
from compiler_worker.worker_context import WorkerContext
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.speed_gate import (
    SpeedVerdict,
    speed_bounds,
    speed_over_fallback,
    verdict,
)
from services.contracts.store.object_store import open_store

FACTORIES = {
    "minilm": "services.cli.demo.minilm:sentence_embedder",
    "small": "tests.benchmarks.small_encoder:small_encoder",
    "fixed": "tests.benchmarks.small_encoder:small_encoder_of_fixed_sizes",
}
FALLBACK = "fallback"
# Ends with its parent, however that ends.
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
KINDS = (EngineKind.INDUCTOR, EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
WANTED_SPREAD = 0.10


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run says of one engine beside the fallback."""

    ratio: float
    low: float
    high: float
    verdict: SpeedVerdict | None

    @property
    def words(self) -> str:
        """For a table."""
        doubt = "" if self.verdict is not SpeedVerdict.NOT_MEASURABLE else " ?"
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f}){doubt}"


def main(arguments: list[str]) -> int:
    """Build, time again and again, print and sum up."""
    given = _parser().parse_args(arguments)
    worker = _worker(given.folder)
    options = AddOptions(folder=given.folder)
    factory = FACTORIES[given.model]
    version = add_model(worker.registry, given.model, factory, options, Steps(is_quiet=True))
    wanted = Wanted(kinds=KINDS, precisions=(Precision.FP32,))
    report = build_model(version, wanted, worker)
    planned = {each.digest for plan in report.plans for each in plan.planned}
    engines = [
        engine
        for engine in worker.registry.engines(version.master.digest)
        if engine.proof.timings and engine.digest in planned
    ]
    if not engines:
        raise SystemExit(f"no engine to time: {[record.reason for record in report.records]}")
    names = [engine.manifest.key.kind.value for engine in engines]
    print_machine()
    print(f"\n| run | beside | {' | '.join(names)} | fallback against itself | winner |")
    print("|---" * (len(names) + 4) + "|")
    runs = []
    for number in range(given.runs):
        num_beside = given.spinning * (number % 2)
        with spinning(num_beside):
            run = _run(engines, version, worker)
        found = {name: _found(run, e.digest) for name, e in zip(names, engines, strict=True)}
        runs.append((num_beside, found))
        told = " | ".join(each.words for each in found.values())
        print(
            f"| {number + 1} | {num_beside} | {told} | {_itself(run)} | {winner(found)} |",
            flush=True,
        )
    return 0 if _is_agreed(runs) else 1


def winner(found: dict[str, Found]) -> str:
    """Who is faster than all others beyond doubt, the fallback included; "" for none."""
    sides = found | {FALLBACK: Found(ratio=1.0, low=1.0, high=1.0, verdict=SpeedVerdict.KEEPS_UP)}
    if any(each.verdict is SpeedVerdict.NOT_MEASURABLE for each in found.values()):
        return ""
    best = max(sides, key=lambda name: sides[name].ratio)
    others = (each for name, each in sides.items() if name != best)
    return best if all(each.high < sides[best].low for each in others) else ""


def _is_agreed(runs: Sequence[tuple[int, dict[str, Found]]]) -> bool:
    winners = [winner(found) for _, found in runs]
    named = set(filter(None, winners))
    num_named = sum(map(bool, winners))
    print(f"\n{num_named} of {len(runs)} runs name a winner: {', '.join(sorted(named)) or 'none'}")
    spreads = [_spread(name, runs) for name in runs[0][1]]
    verdicts = {name: {str(found[name].verdict) for _, found in runs} for name in runs[0][1]}
    for name, told in verdicts.items():
        print(f"{name} beside the fallback: {', '.join(sorted(told))}")
    return len(named) <= 1 and all(spread <= WANTED_SPREAD for spread in spreads)


def _spread(name: str, runs: Sequence[tuple[int, dict[str, Found]]]) -> float:
    """By how much an engine's ratio moved, of the runs that name a winner."""
    told = {
        beside: [found[name].ratio for each, found in runs if each == beside and winner(found)]
        for beside in sorted({each for each, _ in runs})
    }
    spreads = {beside: max(r) / min(r) - 1 for beside, r in told.items() if r}
    every = [ratio for ratios in told.values() for ratio in ratios]
    spread = max(every) / min(every) - 1 if every else 0.0
    parts = ", ".join(f"beside {beside}: {each:.1%}" for beside, each in spreads.items())
    print(f"{name}: the ratio moved by {spread:.1%} ({parts}), {len(every)} of {len(runs)} count")
    return spread


def _run(
    engines: Sequence[PublishedEngine], version: ModelVersion, worker: WorkerContext
) -> JointRun:
    return joint_run(engines, version, main_device(worker.devices), worker)


def _found(run: JointRun, digest: str) -> Found:
    timings = run.timings(digest)
    ratio, bounds = speed_over_fallback(timings), speed_bounds(timings)
    if ratio is None or bounds is None:
        raise SystemExit(f"the fallback was not timed: {run.fallback}")
    return Found(ratio=ratio, low=bounds.low, high=bounds.high, verdict=verdict(timings))


def _itself(run: JointRun) -> str:
    ratios = [s.fallback.ratio for s in run.shapes if s.fallback and s.fallback.ratio]
    return ", ".join(f"{ratio.low:.2f} to {ratio.high:.2f}" for ratio in ratios)


@contextmanager
def spinning(number: int) -> Iterator[None]:
    """So many processes that only spin."""
    command = [sys.executable, "-c", SPIN, str(os.getpid())]
    beside = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def _worker(folder: Path) -> WorkerContext:
    folder.mkdir(parents=True, exist_ok=True)
    settings = CompilerSettings(
        store_url=str(folder / "store"), cache_dir=folder / "cache", benchmark_together=False
    )
    registry = Registry(open_store(settings.store_url), settings.cache_dir)
    return WorkerContext(registry=registry, settings=settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=list(FACTORIES), default="minilm")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--spinning", type=int, default=2)
    return parser


def print_machine() -> None:
    """Where and with which libraries figures are made."""
    libraries = ("torch", "onnxruntime", "openvino", "transformers")
    found = [name for name in libraries if find_spec(name)]
    versions = ", ".join(f"{name} {installed(name)}" for name in found)
    print(f"{platform.platform()}; {versions}; load before: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
