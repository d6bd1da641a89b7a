"""Engines that fooled a proof once: each computes something else, and each is refused.

The right engine of every model here is proven beside them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.builders.typed_graphs import typed_graph
from compiler_worker.proof.claim import ProofVerdict
from compiler_worker.references.models import FxModel, Model
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    OutputRecipe,
    RankingTask,
    Recipe,
    Tolerance,
)
from tests.faults.judged import BATCH, Alter, Altered, Answer, Subject, normal

LINEAR = "g (float[batch, 8] x) => (float[batch, 4] y) { y = MatMul (x, w) }"


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


def test_zeros_of_which_the_master_makes_no_number(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 8] y)
        { sum = ReduceL1 <keepdims = 1> (x, axis) y = Div (x, sum) }"""
    subject = Subject.of(tmp_path, graph, axis=np.array([1]))
    verdict = subject.judged(subject.engine)
    assert (verdict.reason, verdict.notes) == (
        "",
        ("zeros overflow in the master itself: not compared",),
    )


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


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
def test_noise_in_the_coarsest_precision_with_a_ranking_task(
    precision: Precision, tmp_path: Path
) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    recipe = Recipe(
        ranking=RankingTask(output="y", num_queries=16, top_k=5, min_overlap=0.9),
        # As wide as somebody makes them who trusts the task alone.
        tolerances={
            precision: Tolerance(
                rel_l2=10, max_abs=10, cosine_distance=2, column=10, gain=10, agreement=0.1
            )
        },
    )

    def noise(answer: Answer, inputs: Mapping[str, Array]) -> None:
        seed = int(np.abs(inputs["x"]).sum() * 1e6)
        answer["y"] = normal(*answer["y"].shape, seed=seed)

    samples = {"x": normal(80, 8, seed=4)}
    right = subject.judged(subject.engine, recipe, precision, samples=samples)
    assert right.reason == ""
    verdict = subject.judged(Altered(subject.engine, noise), recipe, precision, samples=samples)
    (task,) = verdict.tasks
    assert not task.is_passed
    assert task.value < 0.5
    assert "task top5_overlap:y" in verdict.reason


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


ARGMAX = """g (float[batch, 8] x) => (int64[batch] ids)
    { scores = MatMul (x, w) best = ArgMax <axis = 1, keepdims = 0> (scores)
      ids = Identity (best) }"""


def near_ties(classes: int) -> Array:
    """Weights of classes of which two and two score nearly the same."""
    weights = normal(8, classes)
    weights[:, 1::2] = weights[:, ::2] * np.float32(1 + 1e-6)
    return weights


@pytest.mark.parametrize("precision", list(Precision))
def test_ids_are_compared_through_their_values(precision: Precision, tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, ARGMAX, w=near_ties(512))

    def name_the_other(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["ids"] = answer["ids"] ^ 1

    def name_the_next(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["ids"] = (answer["ids"] + 2) % 512

    right = subject.judged(Altered(subject.engine, name_the_other), precision=precision)
    assert right.reason == ""
    wrong = subject.judged(Altered(subject.engine, name_the_next), precision=precision)
    # Only at zeros, where all classes score the same, any is right.
    assert "agreement 0.0" in wrong.reason


def test_labels_of_single_rows(tmp_path: Path) -> None:
    """Of all that is drawn they are few; of the requests of many models they are most."""
    subject = Subject.of(tmp_path, ARGMAX, w=normal(8, 10))
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=32, max=64)})

    def name_the_next(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if len(inputs["x"]) == 1:
            answer["ids"] = (answer["ids"] + 1) % 10

    for precision in (Precision.BF16, Precision.INT8):
        assert subject.judged(subject.engine, None, precision, (bucket,)).reason == ""
        wrong = subject.judged(Altered(subject.engine, name_the_next), None, precision, (bucket,))
        assert "batches of 1: " in wrong.reason


def blind(verdict: ProofVerdict) -> set[str]:
    """What the proof was blind to."""
    return {name for check in verdict.power for name in check.blind}


def test_bounds_that_let_a_fault_pass_are_refused_unless_the_recipe_accepts_it(
    tmp_path: Path,
) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    wide = Tolerance(rel_l2=5, max_abs=5, cosine_distance=2, column=5, gain=5)
    recipe = Recipe(tolerances={Precision.BF16: wide})

    def err(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = answer["y"] * np.float32(1.9)

    # A right engine lets the bounds be tightened, so that they see everything.
    right = subject.judged(subject.engine, recipe, Precision.BF16)
    assert (right.reason, blind(right)) == ("", set())
    assert all("mean only" in check.tightened for check in right.power)
    verdict = subject.judged(Altered(subject.engine, err), recipe, Precision.BF16)
    assert "the proof is blind to" in verdict.reason
    assert "accept_blind" in verdict.reason
    accepting = recipe.model_copy(
        update={
            "outputs": {"y": OutputRecipe(accept_blind={Precision.BF16: tuple(blind(verdict))})}
        }
    )
    assert subject.judged(Altered(subject.engine, err), accepting, Precision.BF16).reason == ""


def test_what_a_default_proof_would_have_refused_is_recorded(tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    (power,) = subject.judged(subject.engine).power
    assert set(power.refused) == {
        "rows shuffled", "first sample repeated", "columns permuted", "a column's sign flipped",
        "a column zero", "mean only", "noise of the same scale", "2 % off", "10 % off",
        "shifted by one spread", "a column shifted by a tenth of its spread", "shifted by length",
        "one row in fifty of another sample", "absolute values", "fp16 overflow",
    }  # fmt: skip
    assert not power.blind


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
