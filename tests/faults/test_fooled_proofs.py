"""Engines that fooled a proof once by their values: each computes something else, and is refused.

The right engine of every model here is proven beside them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.proof.claim import ProofVerdict
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import OutputRecipe, Recipe
from tests.faults.judged import LINEAR, Alter, Altered, Answer, Subject, normal


def column_faults(verdict: ProofVerdict) -> str:
    """What the columns show, whatever the norms do."""
    return "; ".join(check.fault for check in verdict.columns)


def as_columns(scales: list[float], offsets: list[float]) -> Alter:
    """The engine of another model: each column of y on its own scale."""

    def alter(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = (answer["y"] * np.array(scales) + np.array(offsets)).astype(np.float32)

    return alter


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("change", ["Abs (x)", "Clip (x, zero, one)", "Relu (x)"])
def test_an_engine_that_changes_its_inputs(
    change: str, precision: Precision, tmp_path: Path
) -> None:
    weights = {"w": normal(8, 4), "zero": np.float32(0), "one": np.float32(1)}
    subject = Subject.of(tmp_path, LINEAR, w=weights["w"])
    assert subject.judged(subject.engine, precision=precision).reason == ""
    graph = (
        "g (float[batch, 8] x) => (float[batch, 4] y) "
        f"{{ changed = {change} y = MatMul (changed, w) }}"
    )
    weights = {name: array for name, array in weights.items() if name in graph}
    assert subject.judged(subject.engine_of(graph, **weights), precision=precision).reason


def test_pixels_that_are_read_as_signed(tmp_path: Path) -> None:
    graph = """g (uint8[batch, 8] x) => (float[batch, 4] y)
        { f = Cast <to = 1> (x) s = Mul (f, scale) y = MatMul (s, w) }"""
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), scale=np.float32(1 / 255))
    assert subject.judged(subject.engine).reason == ""
    signed = graph.replace("f = Cast <to = 1> (x)", "i = Cast <to = 3> (x) f = Cast <to = 1> (i)")
    wrong = subject.engine_of(signed, w=normal(8, 4), scale=np.float32(1 / 255))
    assert subject.judged(wrong).reason


@pytest.mark.parametrize("precision", list(Precision))
def test_a_constant_where_the_truth_varies_about_a_large_mean(
    precision: Precision, tmp_path: Path
) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 1] y)
        { small = MatMul (x, w) bounded = Tanh (small) y = Add (bounded, mean) }"""
    subject = Subject.of(tmp_path, graph, w=normal(8, 1), mean=np.float32(1000))

    def flatten(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = np.full_like(answer["y"], 1000)

    assert subject.judged(subject.engine, precision=precision).reason == ""
    verdict = subject.judged(Altered(subject.engine, flatten), precision=precision)
    assert "of its own spread" in column_faults(verdict)
    assert verdict.reason


@pytest.mark.parametrize("keeps", [np.float32, lambda y: 0 * y + 1.7e9])
def test_doubles_that_vary_less_than_float32_tells(
    keeps: Callable[[Array], Array], tmp_path: Path
) -> None:
    """Seconds since 1970, give or take a minute: a float32 of them is off by as much."""
    graph = """g (double[batch, 8] x) => (double[batch, 1] y)
        { minutes = MatMul (x, w) y = Add (minutes, now) }"""
    now = np.float64(1.7e9)
    subject = Subject.of(tmp_path, graph, w=20 * normal(8, 1).astype(np.float64), now=now)

    def coarsen(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = keeps(answer["y"]).astype(np.float64)

    assert subject.judged(subject.engine).reason == ""
    assert "of its own spread" in subject.judged(Altered(subject.engine, coarsen)).reason


def test_probabilities_next_to_nothing(tmp_path: Path) -> None:
    """ONNX Runtime is off by a part of 1e-7 there, of which one may be a thousandth."""
    graph = """g (float[batch, 64] x) => (float[batch, 1] y)
        { seen = MatMul (x, w) logit = Sub (seen, four) y = Sigmoid (logit) }"""
    subject = Subject.of(tmp_path, graph, w=normal(64, 1) / 2, four=np.float32(4))
    assert subject.judged(subject.engine).reason == ""

    def shift(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = answer["y"] + np.float32(1e-5)

    assert subject.judged(Altered(subject.engine, shift)).reason


DETECTOR = """g (float[batch, 8] x) => (float[batch, 6, 20] y)
    { wide = MatMul (x, w) boxes_and_logits = Reshape (wide, shape)
      boxes = Slice (boxes_and_logits, zero, four, axis)
      logits = Slice (boxes_and_logits, four, six, axis)
      large = Mul (boxes, hundreds) moved = Add (large, hundreds) scores = Sigmoid (logits)
      y = Concat <axis = 1> (moved, scores) }"""

DETECTOR_WEIGHTS = {
    "w": normal(8, 120),
    "shape": np.array([0, 6, 20]),
    "zero": np.array([0]),
    "four": np.array([4]),
    "six": np.array([6]),
    "axis": np.array([1]),
    "hundreds": np.float32(300),
}


def _scores_zero(answer: Answer, inputs: Mapping[str, Array]) -> None:
    answer["y"][:, 4:] = 0


def _classes_permuted(answer: Answer, inputs: Mapping[str, Array]) -> None:
    answer["y"][:, 4:] = answer["y"][:, [5, 4]]


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("alter", [_scores_zero, _classes_permuted])
def test_scores_beside_coordinates(alter: Alter, precision: Precision, tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, DETECTOR, **DETECTOR_WEIGHTS)
    verdict = subject.judged(subject.engine, precision=precision)
    assert verdict.reason == ""
    (column,) = verdict.columns
    assert column.column < column.column_bound
    verdict = subject.judged(Altered(subject.engine, alter), precision=precision)
    assert verdict.reason
    assert "axis 1, index" in column_faults(verdict)


@pytest.mark.parametrize("precision", list(Precision))
def test_a_small_column_with_its_sign_flipped(precision: Precision, tmp_path: Path) -> None:
    weights = normal(8, 4) * np.array([1e4, 1e4, 1e4, 1], dtype=np.float32)
    subject = Subject.of(tmp_path, LINEAR, w=weights)
    flip = as_columns([1, 1, 1, -1], [0, 0, 0, 0])
    assert subject.judged(subject.engine, precision=precision).reason == ""
    verdict = subject.judged(Altered(subject.engine, flip), precision=precision)
    assert "axis 1, index 3" in column_faults(verdict)
    assert verdict.reason


@pytest.mark.parametrize(
    ("becomes", "proven_in"),
    [(0.0, {Precision.FP16}), (1e-8, {Precision.FP16}), (1e-6, set()), (1.0, set())],
)
@pytest.mark.parametrize("precision", list(Precision))
def test_a_column_that_is_nothing_beside_the_others(
    precision: Precision, becomes: float, proven_in: set[Precision], tmp_path: Path
) -> None:
    """As of a norm whose weights have decayed: fp16 has no number for it, and nothing else may."""
    weights = normal(8, 4) * np.array([1, 1, 1, 1e-32], dtype=np.float32)
    subject = Subject.of(tmp_path, LINEAR, w=weights)
    assert subject.judged(subject.engine, precision=precision).reason == ""

    def spoil(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"][:, 3] = becomes * np.sign(answer["y"][:, 3])

    verdict = subject.judged(Altered(subject.engine, spoil), precision=precision)
    assert (verdict.reason == "") is (precision in proven_in)
    noted = "output 'y': 1 of 4 columns (index 3) are compared to within" in str(verdict.notes)
    assert noted is (precision is Precision.FP16)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.INT8])
def test_answers_that_are_the_same_for_all_samples(precision: Precision, tmp_path: Path) -> None:
    """As of a classifier whose drawn inputs saturate it: an engine of constants would pass."""
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { m = MatMul (x, w) below = Sub (m, large) y = Relu (below) }"""
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), large=np.float32(1e6))
    other = subject.engine_of(graph, w=normal(8, 4, seed=9), large=np.float32(1e6))
    for engine in (subject.engine, other):
        verdict = subject.judged(engine, precision=precision)
        assert "an engine of constants would have passed" in verdict.reason
        assert "outputs: {y: {accept_blind: " in verdict.reason
    accepted = {"y": OutputRecipe(accept_blind={precision: ("mean only",)})}
    assert subject.judged(subject.engine, Recipe(outputs=accepted), precision).reason == ""


def test_one_output_may_be_the_same_for_all_samples(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 4] y, int64[batch, 1] label)
        { y = MatMul (x, w) s = ReduceMax <keepdims = 1> (y, axes) below = Less (s, large)
          label = Cast <to = 7> (below) }"""
    axes = np.array([1])
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), axes=axes, large=np.float32(1e9))
    assert subject.judged(subject.engine).reason == ""


def test_answers_that_hardly_vary_are_compared(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { m = MatMul (x, w) small = Mul (m, tiny) y = Add (small, one) }"""
    tiny = np.float32(1e-9)
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), tiny=tiny, one=np.float32(1))
    assert subject.judged(subject.engine).reason == ""
