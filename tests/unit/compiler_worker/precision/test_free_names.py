"""Names that typing adds give way to the model's own."""

import numpy as np
import pytest
from onnx import numpy_helper

from compiler_worker.precision.typed import typed_model
from compiler_worker.precision.weight_only import weight_only_model
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.precision.small_graphs import make, node, run, types_of

RNG = np.random.default_rng(0)
W = RNG.standard_normal((16, 16)).astype(np.float32)
SHAPE = (1, ["N", 16])


@pytest.mark.parametrize("own", ["x_float16", "product_float", "w_fp16", "y_fp16"])
def test_a_typed_model_keeps_values_of_the_names_that_casts_would_get(own: str) -> None:
    nodes = [
        node("MatMul", "x w", "product"),
        node("Softmax", "product", own),
        node("Add", f"product {own}", "y"),
    ]
    model = make(nodes, {"w": W}, x=SHAPE, y=SHAPE)
    typed = typed_model(model, Precision.FP16)
    types_of(typed)
    x = RNG.standard_normal((3, 16)).astype(np.float32)
    np.testing.assert_allclose(run(typed, x), run(model, x), atol=2e-2)


@pytest.mark.parametrize("own", ["bias_min", "bias_fp16_bounded"])
def test_bounds_of_a_mask_give_way_too(own: str) -> None:
    weights = {"zero": np.float32(0), "lowest": np.finfo(np.float32).min, "w": W}
    nodes = [
        node("Greater", "x zero", "m"),
        node("Cast", "m", "f", to=1),
        node("Mul", "f lowest", "bias"),
        node("MatMul", "x w", own),
        node("Add", f"{own} bias", "masked"),
        node("Softmax", "masked", "y"),
    ]
    model = make(nodes, weights, x=SHAPE, y=SHAPE)
    typed = typed_model(model, Precision.FP16)
    x = -np.abs(RNG.standard_normal((3, 16))).astype(np.float32)
    x[:, 3] = 1
    np.testing.assert_allclose(run(typed, x), run(model, x), atol=2e-2)


@pytest.mark.parametrize("part", ["int8", "scale", "zero", "restored"])
def test_rounded_weights_leave_the_models_names_alone(part: str) -> None:
    own = f"w_{part}_1"
    nodes = [node("Add", f"x {own}", "shifted"), node("MatMul", "shifted w", "y")]
    shift = np.arange(16, dtype=np.float32)
    model = make(nodes, {"w": W, own: shift}, x=SHAPE, y=SHAPE)
    rounded = weight_only_model(model)
    kept = {t.name: numpy_helper.to_array(t) for t in rounded.graph.initializer}
    np.testing.assert_array_equal(kept[own], shift)
    x = RNG.standard_normal((3, 16)).astype(np.float32)
    wanted = run(model, x)
    assert np.linalg.norm(run(rounded, x) - wanted) / np.linalg.norm(wanted) < 2e-2
