"""Norms that a graph writes out: their squares and quotients stay in float32."""

import numpy as np
import pytest

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.typed import typed_model
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.precision.small_graphs import FLOAT, FLOAT16, make, node, types_of

torch = pytest.importorskip("torch")
WIDTH = 64
CENTRED = [node("ReduceMean", "x last", "mean"), node("Sub", "x mean", "d")]
ROOT = [
    node("ReduceMean", "square last", "variance"),
    node("Add", "variance small", "v"),
    node("Sqrt", "v", "root"),
]
LENGTH = [node("ReduceL2", "x last", "n"), node("Clip", "n tiny", "length")]
NORMS = {
    "layer norm": [*CENTRED, node("Mul", "d d", "square"), *ROOT, node("Div", "d root", "normed")],
    "RMS norm": [node("Mul", "x x", "square"), *ROOT, node("Div", "x root", "normed")],
    "unit vectors": [*LENGTH, node("Div", "x length", "normed")],
    "mean of what is valid": [
        node("Greater", "x zero", "is_valid"),
        node("Cast", "is_valid", "valid", to=FLOAT),
        node("ReduceSum", "valid last", "n"),
        node("Clip", "n tiny", "count"),
        node("Relu", "x", "kept"),
        node("Div", "kept count", "normed"),
    ],
    "by inverses": [*LENGTH, node("Reciprocal", "length", "i"), node("Mul", "i x", "normed")],
}
SHAPE = (FLOAT, ["N", WIDTH])


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_large_values_and_of_a_zero_row_is_right_in_fp16(name: str) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "last": np.int64([-1]),
        "small": np.float32(1e-6),
        "tiny": np.float32(1e-12),
        "zero": np.float32(0),
        "w": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32),
    }
    model = make([*NORMS[name], node("MatMul", "normed w", "y")], weights, x=SHAPE, y=SHAPE)
    typed = typed_model(model, Precision.FP16)
    types = types_of(typed)
    assert types["normed"] == FLOAT
    # What follows is narrow as ever.
    assert types["normed_float16"] == types["y_fp16"] == FLOAT16
    x = 400 * rng.standard_normal((4, WIDTH)).astype(np.float32)
    x[1] = 0
    wanted, found = (graph_module_from_onnx(m)(torch.from_numpy(x))[0] for m in (model, typed))
    # A step of float16 is 1e-3.
    assert (found - wanted).norm() / wanted.norm() < 2e-3


def test_a_product_of_two_values_stays_narrow() -> None:
    model = make([node("Sigmoid", "x", "gate"), node("Mul", "x gate", "y")])
    assert types_of(typed_model(model, Precision.FP16))["y_fp16"] == FLOAT16
