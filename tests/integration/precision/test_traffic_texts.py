"""MiniLM in int8, calibrated while texts were of a word or two: refused for sentences, mended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

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
from services.contracts.traffic.sampled_rows import SampledRow
from tests.process_server import forked_children

__all__ = ["forked_children"]  # a fixture

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
NUM_TEXTS = 160
DIMS = {"batch": DimRange(min=1, opt=4, max=4), "sequence": DimRange(min=1, opt=16, max=128)}


def _serve(registry: Registry, day: int, texts: list[str]) -> None:
    """A day of requests, one text each and none of them padded."""
    rows = []
    for text in texts:
        arrays = tokenise((text,))
        rows.append(SampledRow("b", {name: array[0] for name, array in arrays.items()}))
    span = (BEGAN + timedelta(days=day - 1), BEGAN + timedelta(days=day))
    registry.add_sample_window("minilm", 1, span, rows, {"b": len(rows)})


def _built(version: ModelVersion, worker: WorkerContext) -> BuildRecord:
    (record,) = build_model(version, Wanted(), worker).records
    return record


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_short_texts_and_then_long_ones(worker: WorkerContext) -> None:
    registry = worker.registry
    worker = replace(worker, settings=worker.settings.model_copy(update={"num_threads": 2}))
    asked = recipe().model_copy(
        update={
            "kinds": (EngineKind.OPENVINO,),
            "precisions": (Precision.INT8,),
            "buckets": (Bucket(dims=DIMS),),
            "ranking": None,
            "sampling": Sampling(),
            "calibration": Calibration(traffic=TrafficCalibration()),
        }
    )
    source = "services.cli.demo.minilm:sentence_embedder"
    version = add_model(registry, "minilm", source, AddOptions(recipe=asked), Steps(is_quiet=True))
    random = np.random.default_rng(0)
    sentences = sample_sentences()
    words = sorted({word for sentence in sentences for word in sentence.split()})
    _serve(registry, 1, [" ".join(random.choice(words, 1 + n % 2)) for n in range(NUM_TEXTS)])
    short = publish_calibrated(registry, version)
    assert not traffic_state(registry, short).is_due

    long = [" ".join(random.choice(sentences, random.integers(3, 8))) for _ in range(NUM_TEXTS)]
    _serve(registry, 2, long)
    state = traffic_state(registry, short)
    assert state.is_due
    assert "length sequence" in state.words
    mended = publish_calibrated(registry, short)
    # What was calibrated with the short ones, held to what requests are now.
    trap = registry.add_changed_version(mended, {"calibration": short.calibration})
    record = _built(trap, worker)
    print(record.outcome, record.reason)
    assert record.outcome is BuildOutcome.PROOF_FAILED
    assert "rel_l2" in record.reason
    again = registry.add_changed_version(trap, {"calibration": mended.calibration})
    record = _built(again, worker)
    assert (record.outcome, record.reason) == (BuildOutcome.PROVEN, "")
    assert record.proof
    assert record.proof.samples["traffic"] > 0
    assert not traffic_state(registry, again).is_due
