"""Graphs in float64 for libraries that compute what a graph says."""

import numpy as np
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from compiler_worker.precision.doubled import doubled_model
from services.contracts.errors import UnsupportedGraphError
from tests.faults.judged import normal

HEADER = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>\n'
GRAPH = """g (float[batch, 8] x) => (float[batch, 4] y, int64[batch, 8] whole) {
    scaled = Mul (x, seven_tenths)  whole = Cast <to = 7> (scaled)
    back = Cast <to = 1> (whole)  rest = Sub (x, back)  y = MatMul (rest, w) }"""


def test_sums_are_in_float64_and_decisions_in_float32() -> None:
    model = parser.parse_model(HEADER + GRAPH)
    factor, w, x = np.float32(0.7), normal(8, 4), np.full((1, 8), 10, np.float32)
    weights = {"seven_tenths": np.array(factor), "w": w}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    before = model.SerializeToString()
    y, whole = map(np.asarray, ReferenceEvaluator(doubled_model(model)).run(None, {"x": x}))
    assert model.SerializeToString() == before
    # In float64 ten times 0.7 as float32 has it is less than seven.
    assert np.float64(factor) * 10 < 7
    assert whole.tolist() == [[7] * 8]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, (x - whole) @ w.astype(np.float64), rtol=1e-15, atol=1e-14)


def test_trees_are_left_alone() -> None:
    graph = "g (float[batch, 8] x) => (float[batch, 8] y) { y = ai.onnx.ml.Normalizer (x) }"
    with pytest.raises(UnsupportedGraphError, match=r"ops of ai\.onnx\.ml stay"):
        doubled_model(parser.parse_model(HEADER + graph))
