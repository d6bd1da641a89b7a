"""A few models and all sabotages: none is proven, and each is told what became of it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler_worker.builders.select import builder_for
from services.contracts.hardware.kinds import EngineKind, Precision
from services.engines.device.device_probe import probe_device
from tests.faults.saboteurs.effect import FAILED, Effect, answers, effect
from tests.faults.saboteurs.engine_faults import writes
from tests.faults.saboteurs.graph_faults import GRAPH_FAULTS
from tests.faults.saboteurs.kept_state import FAULTS_OF_ENGINES
from tests.faults.saboteurs.subject import Subject
from tests.faults.saboteurs.trial import (
    ACCEPTED,
    BLIND,
    NO_CHANGE,
    NO_ENGINE,
    NO_PART,
    PROVEN,
    REFUSED,
    WITHIN,
    Trial,
    outcomes,
)
from tests.faults.saboteurs.zoo import KNOWN, ZOO, kind_of

QUICK = [("regression", Precision.FP32), ("top ids", Precision.INT8), ("trees", Precision.FP32)]
EXPLAINED = {REFUSED, NO_ENGINE, BLIND, ACCEPTED, WITHIN, NO_CHANGE, NO_PART}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """References too: two threads of small products wait for each other beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def all_of_them() -> list[object]:
    """Every model in every precision; those that take seconds in each run."""
    return [
        pytest.param(name, precision, marks=() if (name, precision) in QUICK else pytest.mark.slow)
        for name, specimen in ZOO.items()
        for precision in specimen.precisions
    ]


def trial(name: str, precision: Precision, folder: Path) -> Trial:
    kind = kind_of(name, precision)
    generation = probe_device().parsed_generation
    if kind and (reason := builder_for(kind).unavailable_reason(generation, precision)):
        pytest.skip(reason)
    subject = Subject.of(name, ZOO[name], 0, folder / "subject")
    return Trial(subject=subject, precision=precision, kind=kind)


@pytest.mark.parametrize(("name", "precision"), all_of_them())
def test_no_saboteur_is_proven(name: str, precision: Precision, tmp_path: Path) -> None:
    tried = trial(name, precision, tmp_path)
    verdict = tried.subject.judged(tried.engine, tried.kind, precision)
    assert verdict.reason == "", "the right engine"
    found = list(outcomes(tried))
    assert len(found) == len(FAULTS_OF_ENGINES) + len(GRAPH_FAULTS) >= 60
    odd = [each for each in found if each.what not in EXPLAINED]
    assert {each.identity for each in odd} <= KNOWN, odd
    # Of the model of strings, which has no weights, 14 change an answer at all.
    assert Counter(each.what for each in found)[REFUSED] >= 14


def test_one_that_stays_within_the_bounds_is_told_as_proven(tmp_path: Path) -> None:
    """Else the others would say nothing."""
    tried = trial("trees", Precision.FP32, tmp_path)
    nearly = writes(lambda y: y * np.float32(1 + 5e-6))
    outcome = tried.outcome_of_engine("a little", nearly)
    assert outcome.what == PROVEN
    assert outcome.effect is not None
    assert 1e-6 < outcome.effect.mean < 1e-5


def test_the_effect_is_measured_in_spreads_and_integers_by_their_share(tmp_path: Path) -> None:
    subject = Subject.of("trees", ZOO["trees"], 0, tmp_path / "subject")
    draws, recipe = subject.draws, subject.specimen.recipe
    right = answers(subject.exact_model, draws)
    spread = np.concatenate([answer["y"] for answer in right]).std(axis=0)

    def of(change: object) -> Effect:
        found = [{"y": change(answer["y"])} for answer in right]
        return effect(found, right, draws, subject.master, recipe)

    assert of(lambda y: y) == Effect()
    moved = of(lambda y: y + spread / 4)
    assert (moved.mean, moved.largest) == (pytest.approx(0.25), pytest.approx(0.25))
    assert of(lambda y: y[:, :1]) == of(lambda y: y * np.nan) == FAILED


def test_fp16_is_rounded_after_each_op(tmp_path: Path) -> None:
    """Squares of large values overflow, as they would on a GPU: that engine is refused."""
    subject = Subject.of("regression", ZOO["regression"], 0, tmp_path / "subject")
    engine = subject.built(None, Precision.FP16)
    verdict = subject.judged(engine, None, Precision.FP16)
    assert "NaN or Inf" in verdict.reason
    fp32 = subject.built(EngineKind.ONNXRUNTIME, Precision.FP32)
    assert subject.judged(fp32, EngineKind.ONNXRUNTIME, Precision.FP32).reason == ""
