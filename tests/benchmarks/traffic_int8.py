"""MiniLM in int8, calibrated with rows that a replica's sampler kept: how close, how fast.

    HF_HUB_OFFLINE=1 python -m tests.benchmarks.traffic_int8 [--seconds S]

Texts of one to eight sentences go through a replica's sampler, one at a time and without padding.
Its rows calibrate the next version. Engines are compared with ONNX Runtime's fp32 on texts of other
sentences, which were never sent, and take turns to be timed; last of all one is proven.
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
from services.cli.demo.minilm import OUTPUT, recipe, tokenise
from services.cli.demo.sentences import sample_sentences
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.calibration_recipe import Calibration, TrafficCalibration
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.traffic.recalibration import publish_calibrated
from services.replica.request.infer_call import InferCall
from services.replica.sampling.sampler import Sampler
from services.telemetry.recorder import NullRecorder
from tests.benchmarks.cpu.unproven import Call, unproven
from tests.benchmarks.joint_runs import print_machine
from tests.quick_worker import quick_worker

NAME = "minilm"
SHAPES = ((1, 16), (8, 32), (8, 128))
KINDS = (EngineKind.OPENVINO, EngineKind.ONNXRUNTIME)
PROVEN = Wanted(kinds=(EngineKind.OPENVINO,), precisions=(Precision.INT8,))


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
        sent, others = _texts()
        asyncio.run(_sample(version, worker.registry, sent))
        calibrated = publish_calibrated(worker.registry, version)
        print(calibrated.traffic, flush=True)
        engines = unproven(worker, calibrated, Wanted(), num_threads=2)
        _compare(engines, tokenise(others))
        for shape in SHAPES:
            _time(engines, shape, seconds)
        for record in build_model(calibrated, PROVEN, worker).records:
            samples = record.proof.samples if record.proof else {}
            words = f"{record.key.kind} {record.key.precision} {record.outcome}"
            print(words, samples, record.reason, flush=True)


def _texts() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts of one to eight sentences: two thirds of the sentences are in those that are sent."""
    sentences = sample_sentences()
    sent = [each for number, each in enumerate(sentences) if number % 3]
    sides = [sent, list(sentences[::3])]
    random = np.random.default_rng(0)
    texts = [
        tuple(" ".join(random.choice(side, random.integers(1, 9))) for _ in range(num))
        for side, num in zip(sides, (300, 100), strict=True)
    ]
    return texts[0], texts[1]


async def _sample(version: ModelVersion, registry: Registry, texts: tuple[str, ...]) -> None:
    """Has a replica's sampler see each text as a request of its own, without padding."""
    sampling = version.recipe.sampling
    assert sampling is not None
    sampler = Sampler(version, sampling, registry, NullRecorder())
    for text in texts:
        arrays = tokenise((text,))
        sizes = dict(zip(("batch", "sequence"), arrays["input_ids"].shape, strict=True))
        sampler.offer([InferCall(inputs=arrays, sizes=sizes, outputs=())])
    await sampler.close()


def _compare(engines: Mapping[str, Call], inputs: Mapping[str, Array]) -> None:
    rows = len(next(iter(inputs.values())))
    answers = {
        name: np.concatenate(
            [
                engine({n: a[i : i + 8] for n, a in inputs.items()})[OUTPUT]
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


def _time(engines: Mapping[str, Call], shape: tuple[int, int], seconds: float) -> None:
    ids = np.random.default_rng(0).integers(1000, 20000, shape)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    took_ms: dict[str, list[float]] = {name: [] for name in engines}
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        for name, engine in engines.items():
            began_s = time.perf_counter()
            engine(inputs)
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
