"""Engines that are wrong at some inputs alone: their sizes, masks, zeros, small and large values.

The right engine of every model here is proven beside them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.builders.typed_graphs import typed_graph
from compiler_worker.inputs.calibrated_recipe import calibrated_recipe
from compiler_worker.references.models import FxModel, Model
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    Recipe,
)
from tests.faults.judged import BATCH, LINEAR, Altered, Answer, Subject, normal


def test_silence(tmp_path: Path) -> None:
    """What keeps a logarithm from 0 is itself 0 in fp16: of no drawn sound, but of silence."""
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { loud = Abs (x) more = Add (loud, little) seen = Log (more) y = MatMul (seen, w) }"""
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), little=np.float32(1e-9))
    path = tmp_path / "typed.onnx"
    onnx.save(typed_graph(subject.path, Precision.FP16), path)
    typed = FxModel.open(path, subject.master, device="cpu")
    assert subject.judged(subject.engine).reason == ""
    assert "NaN or Inf values found" in subject.judged(typed, precision=Precision.FP16).reason


@pytest.mark.parametrize(
    ("epsilon", "other", "precision"),
    [(1e-12, 1e-5, Precision.FP32), (1e-5, 1e-3, Precision.FP16), (1e-5, 1e-3, Precision.BF16)],
)
def test_another_epsilon(
    epsilon: float, other: float, precision: Precision, tmp_path: Path
) -> None:
    """It is less than a rounding beside the usual values, and much beside small ones."""
    graph = f"""g (float[batch, 64] x) => (float[batch, 64] y)
        {{ y = LayerNormalization <epsilon = {epsilon}> (x, scale) }}"""
    scale = np.ones(64, np.float32)
    subject = Subject.of(tmp_path, graph, scale=scale)
    wrong = subject.engine_of(graph.replace(str(epsilon), str(other)), scale=scale)
    assert subject.judged(subject.engine, precision=precision).reason == ""
    assert "rel_l2" in subject.judged(wrong, precision=precision).reason


def test_zeros_of_which_the_master_makes_no_number(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 8] y)
        { sum = ReduceL1 <keepdims = 1> (x, axis) y = Div (x, sum) }"""
    subject = Subject.of(tmp_path, graph, axis=np.array([1]))
    verdict = subject.judged(subject.engine)
    assert (verdict.reason, verdict.notes) == (
        "",
        ("zeros overflow in the master itself: not compared",),
    )


def test_sizes_between_powers_of_two(tmp_path: Path) -> None:
    """As a kernel whose last block is wrong where a size is no multiple of it."""
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=64, max=128)})

    def spoil_the_tail(answer: Answer, inputs: Mapping[str, Array]) -> None:
        num_rows = len(inputs["x"])
        if num_rows > 1:
            answer["y"][num_rows - num_rows % 4 :] = 0

    assert subject.judged(subject.engine, buckets=(bucket,)).reason == ""
    verdict = subject.judged(Altered(subject.engine, spoil_the_tail), buckets=(bucket,))
    assert verdict.reason


def test_two_rows(tmp_path: Path) -> None:
    """As kernels for a few rows, of which a bucket's usual and largest sizes ask none."""
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=16, max=64)})

    def spoil_two(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if len(inputs["x"]) == 2:
            answer["y"] = answer["y"][::-1]

    assert subject.judged(subject.engine, buckets=(bucket,)).reason == ""
    verdict = subject.judged(Altered(subject.engine, spoil_two), buckets=(bucket,))
    assert "batch=2" in verdict.reason


MASKED_SUM = """g (float[batch, seq] x, int64[batch, seq] mask) => (float[batch] y)
    { weights = Cast <to = 1> (mask) kept = Mul (x, weights)
      y = ReduceSum <keepdims = 0> (kept, axis) }"""


class Spans:
    """An engine to which a mask is the first and the last of its valid positions."""

    def __init__(self, engine: Model) -> None:
        self._engine = engine

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """All between them counts."""
        mask = inputs["mask"]
        ahead, behind = (np.maximum.accumulate(m, axis=1) for m in (mask, mask[:, ::-1]))
        return self._engine.run({"x": inputs["x"], "mask": ahead & behind[:, ::-1]})


def test_masks_with_holes(tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, MASKED_SUM, axis=np.array([1]))
    dims = {"batch": DimRange(min=1, opt=4, max=8), "seq": DimRange(min=1, opt=16, max=32)}
    recipe = Recipe(inputs={"mask": InputRecipe(role=InputRole.MASK)})
    buckets = (Bucket(dims=dims),)
    assert subject.judged(subject.engine, recipe, buckets=buckets).reason == ""
    assert "output 'y'" in subject.judged(Spans(subject.engine), recipe, buckets=buckets).reason


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_overflow_of_half_precision(precision: Precision, tmp_path: Path) -> None:
    """Squares of usual values fit fp16; those of values eight times as large do not."""
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { large = Mul (x, scale) squares = Mul (large, large) y = MatMul (squares, w) }"""
    weights = np.abs(normal(8, 4)) / 100
    subject = Subject.of(tmp_path, graph, w=weights, scale=np.float32(50))

    def saturate(answer: Answer, inputs: Mapping[str, Array]) -> None:
        squares = np.minimum((inputs["x"] * 50) ** 2, 65_504)
        answer["y"] = (squares @ weights).astype(np.float32)

    assert subject.judged(subject.engine, precision=precision).reason == ""
    assert subject.judged(Altered(subject.engine, saturate), precision=precision).reason


def test_overflow_of_the_master_itself_is_nobodys_fault(tmp_path: Path) -> None:
    """Float64 holds what float32 does not: neither engine nor importer is wrong."""
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { a = MatMul (x, w) e = Exp (a) p = Add (e, one) y = Log (p) }"""
    subject = Subject.of(tmp_path, graph, w=2 * normal(8, 4), one=np.float32(1))
    verdict = subject.judged(subject.engine)
    assert verdict.reason == ""
    assert "the importer is wrong" not in verdict.reference
    assert "large" not in verdict.samples
    assert verdict.notes == (
        "eight times the usual values overflow in the master itself: not compared",
    )


def test_what_real_samples_alone_show(tmp_path: Path) -> None:
    """Samples given with a model are part of the equality check, not of tasks alone."""
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    samples = {"x": normal(20, 8, seed=5) + 100}

    def spoil(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"][(inputs["x"] > 50).all(axis=1)] = 0

    engine = Altered(subject.engine, spoil)
    assert subject.judged(engine).reason == ""
    assert subject.judged(subject.engine, samples=samples).reason == ""
    assert "output 'y', bucket batch8" in subject.judged(engine, samples=samples).reason


def test_an_input_that_the_recipe_bounds_is_drawn_there(tmp_path: Path) -> None:
    """A square root of what is never negative: the recipe says so, and nothing else is drawn."""
    graph = "g (float[batch, 8] x) => (float[batch, 8] y) { y = Sqrt (x) }"
    subject = Subject.of(tmp_path, graph)
    recipe = Recipe(inputs={"x": InputRecipe(low=0, high=1)})
    assert subject.judged(subject.engine, recipe, buckets=(BATCH,)).reason == ""


def test_an_output_that_is_empty_at_every_sample_is_not_compared(tmp_path: Path) -> None:
    """As detections are that no drawn image has: any engine at all that finds none is alike."""
    graph = """g (float[batch, 8] x) => (float[found] y)
        { flat = Reshape (x, all) is_large = Greater (flat, limit)
          y = Compress (flat, is_large) }"""
    weights = {"all": np.array([-1], np.int64), "limit": np.float32(1000)}
    subject = Subject.of(tmp_path, graph, **weights)
    assert "output 'y' is empty at every sample" in subject.judged(subject.engine).reason
    samples = {"x": normal(8, 8) * np.float32(2000)}
    assert subject.judged(subject.engine, samples=samples).reason == ""


def test_values_beyond_the_scales_that_only_requests_have(tmp_path: Path) -> None:
    """Drawn values are of the size of the calibration set: what ends there is exact on them."""
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    calibration = {"x": normal(64, 8, seed=5) / 100}
    recipe = calibrated_recipe(Recipe(), subject.master, calibration)
    most = 4 * np.abs(calibration["x"]).max()

    def saturate(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = np.clip(inputs["x"], -most, most) @ normal(8, 4)

    def judged(scale: float) -> str:
        requests = {"x": normal(64, 8, seed=6) * np.float32(scale)}
        engine = Altered(subject.engine, saturate)
        return subject.judged(engine, recipe, Precision.INT8, held_out=requests).reason

    assert judged(0.01) == ""
    assert "rel_l2" in judged(1.0)
