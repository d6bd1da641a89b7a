"""Takes damaged models in as a user would, and builds engines from those that are sound.

    python -m tests.faults.mutated_models [--first 0] [--count 200] [--build]

Each model is refused with a reason or opened as a master; with `--build` each that was opened
is built and proven for this machine through the compiler's own throw-away processes. One line
of JSON for each model goes to standard output. This process lives through all of them, or ends
with the seed on its lips.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from compiler_worker.building.pipeline import BuildReport, build_model
from compiler_worker.master.opened import OpenedMaster, open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.contracts.errors import InvalidModelError, SmeltError, UnsupportedGraphError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Recipe
from tests.faults.mutations import mutated
from tests.quick_worker import quick_worker

KINDS = Wanted(kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))


@dataclass(frozen=True)
class Fate:
    """What became of one damaged model.

    Attributes:
        damaged: which part.
        verdict: "refused", "opened", "not planned", "proven", "failed" or "mixed".
        reason: in words; of the engines that were not built, when some were not.
    """

    seed: int
    damaged: str
    verdict: str
    reason: str = ""


def fate_of(seed: int, folder: Path, worker: WorkerContext | None = None) -> Fate:
    """Open one damaged model, and build it when there is a worker; other errors escape."""
    damaged, data = mutated(seed)
    path = folder / f"{seed}.onnx"
    path.write_bytes(data)
    try:
        master = open_master(OnnxFile(path=path), folder / f"{seed}", lambda line: None)
    except (InvalidModelError, UnsupportedGraphError) as error:
        return Fate(seed, damaged, "refused", f"{type(error).__name__}: {error}")
    if worker is None:
        return Fate(seed, damaged, "opened")
    try:
        return Fate(seed, damaged, *_verdict(_built(seed, master, worker)))
    except SmeltError as error:
        return Fate(seed, damaged, "not planned", f"{type(error).__name__}: {error}")


def _built(seed: int, master: OpenedMaster, worker: WorkerContext) -> BuildReport:
    version = worker.registry.add_model_version(
        name=f"seed{seed}",
        master=worker.registry.publish_master(master),
        recipe=Recipe(precisions=(Precision.FP32,)),
        source="mutation",
        source_fingerprint=str(seed),
    )
    return build_model(version, KINDS, worker)


def _verdict(report: BuildReport) -> tuple[str, str]:
    reasons = [record.reason for record in report.records if record.reason]
    verdicts = {"failed" if record.reason else "proven" for record in report.records}
    # Two damages may leave the same master: its engines are there already.
    verdicts |= {"proven"} if report.up_to_date else set()
    return (verdicts.pop() if len(verdicts) == 1 else "mixed"), "; ".join(reasons)


def _fates(arguments: argparse.Namespace, folder: Path) -> Iterator[Fate]:
    worker = quick_worker(folder) if arguments.build else None
    for seed in range(arguments.first, arguments.first + arguments.count):
        sys.stderr.write(f"seed {seed}\n")
        yield fate_of(seed, folder, worker)


def main() -> None:
    """Print each fate, and the sums at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--build", action="store_true")
    arguments = parser.parse_args()
    sums: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        for fate in _fates(arguments, Path(folder)):
            sums[fate.verdict] += 1
            sys.stdout.write(json.dumps(asdict(fate)) + "\n")
            sys.stdout.flush()
    sys.stderr.write(f"{dict(sums)}\n")


if __name__ == "__main__":
    main()
