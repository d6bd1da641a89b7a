"""Where a model decides, its reference decides as it does: in the master's own types.

Every master here comes to other decisions when float64 computes them, with the same weights and
inputs; ONNX Runtime's engine is right, and proves at the bounds of fp32.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.decisions import deciding_outputs
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.faults.judged import Altered, Answer, Subject, normal
from tests.faults.saboteurs.models_of_tables import quantised

# Quantised twice: 0.21 is one and a half times 0.14, so half of all elements are ties.
QUANTISED = """g (float[batch, 8] x) => (float[batch, 4] y) {
    first = QuantizeLinear (x, coarse, zero)  back = DequantizeLinear (first, coarse, zero)
    second = QuantizeLinear (back, fine, zero)  again = DequantizeLinear (second, fine, zero)
    y = MatMul (again, w) }"""
BUCKETS = """g (int64[batch, 8] distance) => (float[batch, 8, 4] y) {
    real = Cast <to = 1> (distance)  ratio = Div (real, eight)  log = Log (ratio)
    part = Div (log, spread)  scaled = Mul (part, eight)  bucket = Cast <to = 7> (scaled)
    y = Gather (w, bucket) }"""
FLOORED = """g (int64[batch, 8] count) => (float[batch, 4] y) {
    real = Cast <to = 1> (count)  part = Mul (real, seven_tenths)  whole = Floor (part)
    y = MatMul (whole, w) }"""
# Beside 1e8 float32 has no room for the scores' own differences: all of a row are its largest.
ABSORBED = """g (float[batch, 8] x) => (float[batch, 4] y) {
    logits = MatMul (x, w)  scores = Add (logits, large)
    best = ReduceMax (scores, last)  is_best = Equal (scores, best)
    y = Cast <to = 1> (is_best) }"""
COUNTS = Recipe(inputs={"count": InputRecipe(low=0, high=200)})
DISTANCES = Recipe(inputs={"distance": InputRecipe(low=8, high=127)})


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


MASTERS: dict[str, tuple[str, Recipe, dict[str, Array]]] = {
    "Q/DQ": (
        QUANTISED,
        Recipe(),
        {"coarse": scalar(0.21), "fine": scalar(0.14), "zero": np.array(0, np.int8)},
    ),
    "buckets": (
        BUCKETS,
        DISTANCES,
        {"eight": scalar(8), "spread": scalar(2.7725887), "w": normal(16, 4)},
    ),
    "floor": (FLOORED, COUNTS, {"seven_tenths": scalar(0.7)}),
    "absorbed": (ABSORBED, Recipe(), {"last": np.array([-1]), "large": scalar(1e8)}),
}


@pytest.mark.parametrize("name", MASTERS)
def test_a_right_engine_is_proven(name: str, tmp_path: Path) -> None:
    graph, recipe, weights = MASTERS[name]
    subject = Subject.of(tmp_path, graph, **{"w": normal(8, 4), **weights})
    verdict = subject.judged(subject.engine, recipe)
    assert verdict.reason == ""
    assert max(check.rel_l2 for check in verdict.checks) < 1e-6


class Optimised:
    """ONNX Runtime as its engines run: with all that it makes of a graph."""

    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": self._session.run(["y"], dict(inputs))[0]}


def test_a_right_engine_of_a_quantised_master_may_go_the_other_way_at_a_tie(tmp_path: Path) -> None:
    # Its biases are in float32: ONNX Runtime's int8 kernels take them in steps of their products.
    path = tmp_path / "model.onnx"
    onnx.save(quantised(0), path)
    subject = Subject.opened(tmp_path, path)
    right, many = Optimised(path), (Bucket(dims={"batch": DimRange(min=1, opt=60, max=64)}),)
    verdict = subject.judged(right, buckets=many)
    assert verdict.reason == ""
    assert max(check.rel_l2 for check in verdict.checks) > 1e-3, "one does go the other way"

    def off(answer: Answer, _inputs: Mapping[str, Array]) -> None:
        answer["y"] = answer["y"] * np.float32(1.02)

    assert "found, " in subject.judged(Altered(right, off), buckets=many).reason


def test_sizes_that_the_model_itself_does_not_compute_are_left_out_and_told(
    tmp_path: Path,
) -> None:
    graph = """g (float[batch, n] x) => (float[batch, m, 4] y) { y = Reshape (x, fours) }"""
    subject = Subject.of(tmp_path, graph, fours=np.array([0, -1, 4]))
    dims = {"batch": DimRange(min=1, opt=4, max=8), "n": DimRange(min=4, opt=8, max=16)}
    verdict = subject.judged(subject.engine, buckets=(Bucket(dims=dims),))
    assert verdict.reason == ""
    assert {check.sizes["n"] % 4 for check in verdict.checks} == {0}
    assert any("the model itself does not compute batch=" in note for note in verdict.notes)


def test_integers_of_which_nothing_is_said_are_told(tmp_path: Path) -> None:
    graph = "g (int64[batch, 4] count) => (float[batch, 4] y) { y = Cast <to = 1> (count) }"
    subject = Subject.of(tmp_path, graph)
    (note,) = subject.judged(subject.engine).notes
    assert "which integers 'count' takes" in note
    assert subject.judged(subject.engine, COUNTS).notes == ()


# Float in, float out, and in between what only a round knows.
LOOPED = """g (int64[batch] distance, float[batch, 4] x, int64 rounds) => (float[batch, 4] y) {
    yes = Constant <value = bool {1}> ()
    y = Loop (rounds, yes, x) <body = round (int64 i, bool go, float[batch, 4] before)
        => (bool goes_on, float[batch, 4] after) {
        goes_on = Identity (go)
        real = Cast <to = 1> (distance)  ratio = Div (real, eight)  log = Log (ratio)
        part = Div (log, spread)  scaled = Mul (part, eight)  bucket = Cast <to = 7> (scaled)
        rounded = Floor (before)  picked = Gather (w, bucket)  both = Add (picked, rounded)
        after = Sub (before, both) }> }"""


def imported(graph: str, **weights: Array) -> torch.fx.GraphModule:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{graph}')
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(tensors)
    return graph_module_from_onnx(model, float_dtype=torch.float64)


def test_bodies_of_loops_decide_in_their_own_types() -> None:
    weights = {"eight": scalar(8), "spread": scalar(2.7725887), "w": normal(16, 4)}
    module = imported(LOOPED, **weights)
    x = np.random.default_rng(1).standard_normal((3, 4))
    distance = torch.tensor([16, 32, 64])
    (found,) = module(distance, torch.from_numpy(x), torch.tensor(2))
    for _ in range(2):
        x = x - (weights["w"][[2, 4, 6]].astype(np.float64) + np.floor(x))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), x, rtol=0, atol=1e-14)


def test_only_what_decides_is_in_the_masters_types() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 4] x, int64[n] ids, float[4, 4] w) => (float[n, 4] y, int64[n] best) {
            half = Mul (x, x)  is_large = Greater (half, x)
            hidden = MatMul (half, w)  bias = Add (hidden, x)  is_set = Greater (bias, x)
            mask = And (is_large, is_set)  y = Where (mask, bias, hidden)
            best = ArgMax <axis = 1, keepdims = 0> (y) }"""
    )
    assert deciding_outputs(model) == {"half", "is_large", "is_set", "best"}
