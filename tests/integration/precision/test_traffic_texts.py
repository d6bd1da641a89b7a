"""MiniLM in int8, calibrated while texts were of a word or two: refused for sentences, mended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.cli.demo.minilm import recipe, tokenise
from services.cli.demo.sentences import sample_sentences
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.calibration_recipe import Calibration, TrafficCalibration
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, DimRange
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.traffic.recalibration import publish_calibrated, traffic_state
from services.contracts.traffic.sampled_rows import SampledRow, bytes_from_arrays
from tests.process_server import forked_children

__all__ = ["forked_children"]  # a fixture

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
NUM_TEXTS = 160
DIMS = {"batch": DimRange(min=1, opt=4, max=4), "sequence": DimRange(min=1, opt=16, max=128)}


def _asked(calibration: Calibration) -> AddOptions:
    asked = {
        "kinds": (EngineKind.OPENVINO,),
        "precisions": (Precision.INT8,),
        "buckets": (Bucket(dims=DIMS),),
        "ranking": None,
        "sampling": Sampling(),
        "calibration": calibration,
    }
    return AddOptions(recipe=recipe().model_copy(update=asked))


def _added(registry: Registry, calibration: Calibration) -> ModelVersion:
    source = "services.cli.demo.minilm:sentence_embedder"
    return add_model(registry, "minilm", source, _asked(calibration), Steps(is_quiet=True))


def _serve(registry: Registry, texts: list[str]) -> None:
    """A day of requests, one text each and none of them padded."""
    rows = []
    for text in texts:
        arrays = tokenise((text,))
        rows.append(SampledRow("b", {name: array[0] for name, array in arrays.items()}))
    span = (BEGAN, BEGAN + timedelta(days=1))
    registry.add_sample_window("minilm", 1, span, rows, {"b": len(rows)})


def _built(version: ModelVersion, worker: WorkerContext) -> BuildRecord:
    (record,) = build_model(version, Wanted(), worker).records
    return record


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_short_texts_and_then_long_ones(worker: WorkerContext, tmp_path: Path) -> None:
    registry = worker.registry
    worker = replace(worker, settings=worker.settings.model_copy(update={"num_threads": 2}))
    random = np.random.default_rng(0)
    sentences = sample_sentences()
    words = sorted({word for sentence in sentences for word in sentence.split()})
    short = tokenise(tuple(" ".join(random.choice(words, 1 + n % 2)) for n in range(NUM_TEXTS)))
    path = tmp_path / "short.npz"
    path.write_bytes(bytes_from_arrays(short))
    record = _built(_added(registry, Calibration(path=str(path))), worker)
    assert record.outcome is BuildOutcome.PROOF_FAILED
    assert "rel_l2" in record.reason

    long = [" ".join(random.choice(sentences, random.integers(1, 8))) for _ in range(NUM_TEXTS)]
    _serve(registry, long)
    version = _added(registry, Calibration(traffic=TrafficCalibration()))
    assert traffic_state(registry, version).is_due
    mended = publish_calibrated(registry, version)
    record = _built(mended, worker)
    assert (record.outcome, record.reason) == (BuildOutcome.PROVEN, "")
    assert record.proof
    assert record.proof.samples["traffic"] > 0
    assert not traffic_state(registry, mended).is_due
