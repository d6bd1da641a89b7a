"""MiniLM in int8, calibrated with the requests that a replica answered: how close, how fast.

    HF_HUB_OFFLINE=1 python -m tests.benchmarks.traffic_int8 [--seconds S]

Two thirds of the demo's sentences are sent to a replica that samples, one at a time and without
padding. Its rows calibrate the next version, whose engines are built and proven. The last third was
never sent: on that, engines are compared with ONNX Runtime's fp32. Engines take turns to be timed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.cli.demo.minilm import OUTPUT, recipe, tokenise
from services.cli.demo.sentences import sample_sentences
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.cli.requests.infer import request_from_arrays
from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.calibration_recipe import Calibration, TrafficCalibration
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.traffic.recalibration import publish_calibrated
from services.engines.base import Engine, LoadSpec
from services.engines.loader import engine_class
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.benchmarks.joint_runs import print_machine
from tests.quick_worker import quick_worker

NAME = "minilm"
SHAPES = ((1, 16), (8, 32), (8, 128))
KINDS = (EngineKind.OPENVINO, EngineKind.ONNXRUNTIME)


def measure(seconds: float) -> None:
    """Print what was built, how close it is, and how fast."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        worker = quick_worker(folder)
        asked = recipe().model_copy(
            update={
                "kinds": KINDS,
                "precisions": (Precision.FP32, Precision.INT8),
                "ranking": None,
                "sampling": Sampling(rate_per_s=100),
                "calibration": Calibration(traffic=TrafficCalibration()),
            }
        )
        source = "services.cli.demo.minilm:sentence_embedder"
        options = AddOptions(recipe=asked)
        version = add_model(worker.registry, NAME, source, options, Steps(is_quiet=True))
        sentences = sample_sentences()
        sent = tuple(each for number, each in enumerate(sentences) if number % 3)
        asyncio.run(_serve(worker, folder, sent))
        calibrated = publish_calibrated(worker.registry, version)
        print(calibrated.traffic, flush=True)
        for record in build_model(calibrated, Wanted(), worker).records:
            key = record.key
            samples = record.proof.samples if record.proof else {}
            print(key.kind, key.precision, record.outcome, samples, record.reason, flush=True)
        engines = {
            f"{each.manifest.key.kind} {each.manifest.key.precision}": _loaded(
                each, calibrated, worker
            )
            for each in worker.registry.engines(calibrated.master.digest)
        }
        _compare(engines, tokenise(sentences[::3]))
        for shape in SHAPES:
            _time(engines, shape, seconds)


async def _serve(worker: WorkerContext, folder: Path, sentences: tuple[str, ...]) -> None:
    settings = ReplicaSettings(
        store_url=worker.settings.store_url, cache_dir=worker.settings.cache_dir, model=NAME,
        socket_dir=folder, num_threads=2,
    )  # fmt: skip
    server = ReplicaServer(settings, NullRecorder())
    await server.start()
    for sentence in sentences:
        body = request_from_arrays(NAME, "", tokenise((sentence,)))
        await server.replica.infer(body.SerializeToString())
    await server.stop(0)


def _loaded(engine: PublishedEngine, version: ModelVersion, worker: WorkerContext) -> Engine:
    master = worker.registry.materialise_master(version.master)
    spec = LoadSpec(
        manifest=engine.manifest,
        master=version.master,
        directory=worker.registry.materialise_engine(engine),
        master_path=master / "model.onnx",
        device=worker.devices[Platform.CPU],
        num_threads=2,
    )
    return engine_class(engine.manifest.key.kind).load(spec)


def _compare(engines: Mapping[str, Engine], inputs: Mapping[str, Array]) -> None:
    rows = len(next(iter(inputs.values())))
    answers = {
        name: np.concatenate(
            [
                engine.run({n: a[i : i + 8] for n, a in inputs.items()})[OUTPUT]
                for i in range(0, rows, 8)
            ]
        )
        for name, engine in engines.items()
    }
    wanted = answers["onnxruntime fp32"]
    print(f"{rows} sentences that were not sent\n| engine | mean cosine | least |\n|---|---:|---:|")
    for name, found in sorted(answers.items()):
        cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1)
        print(f"| {name} | {cosines.mean():.4f} | {cosines.min():.4f} |", flush=True)


def _time(engines: Mapping[str, Engine], shape: tuple[int, int], seconds: float) -> None:
    ids = np.random.default_rng(0).integers(1000, 20000, shape)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    took_ms: dict[str, list[float]] = {name: [] for name in engines}
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        for name, engine in engines.items():
            began_s = time.perf_counter()
            engine.run(inputs)
            took_ms[name].append(1000 * (time.perf_counter() - began_s))
    # Other work of the machine only ever adds: the quickest tenth is what an engine takes.
    quick = {name: float(np.quantile(each, 0.1)) for name, each in took_ms.items()}
    best = min(ms for name, ms in quick.items() if name.endswith("fp32"))
    rounds = len(next(iter(took_ms.values())))
    print(f"{shape[0]}x{shape[1]}, {rounds} rounds\n| engine | p10 ms | p50 ms | over best fp32 |")
    print("|---|---:|---:|---:|")
    for name, ms in sorted(quick.items()):
        print(f"| {name} | {ms:.2f} | {median(took_ms[name]):.2f} | {best / ms:.2f} |", flush=True)


def main(arguments: list[str]) -> int:
    """Measure with the options that were given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args(arguments)
    print_machine()
    measure(given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
