"""Numbers that ONNX's reference implementation has wrong: ours are as ONNX Runtime's."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from compiler_worker.references.reference_ops import OPS
from services.contracts.kserve.tensors import Array

HEADER = '<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>'


def drawn(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def answers(graph: str, inputs: dict[str, Array]) -> tuple[list[Array], list[Array]]:
    """Of the reference implementation, and of ONNX Runtime."""
    model = parser.parse_model(f"{HEADER} {graph}")
    ours = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(ours), session.run(None, inputs)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_every_channel_is_normalised_whatever_the_batch(size: int) -> None:
    graph = f"g (float[N,6,2,3] x) => (float[N,6,2,3] y) {{ y = LRN <size = {size}> (x) }}"
    found, wanted = answers(graph, {"x": 8 * drawn(2, 6, 2, 3)})
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    assert not np.allclose(found[0][:, 2:], 8 * drawn(2, 6, 2, 3)[:, 2:], rtol=1e-5)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_norm_is_of_values_without_their_signs(p: int, axis: int) -> None:
    graph = f"g (float[3,4] x) => (float[3,4] y) {{ y = LpNormalization <p={p}, axis={axis}> (x) }}"
    x = drawn(3, 4)
    x[:, 1] = x[1] = 0
    found, wanted = answers(graph, {"x": x})
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    assert (x < 0).any()


def test_ties_are_rounded_before_the_zero_point_is_added() -> None:
    graph = """g (int8[N,4] x) => (int8[N,1] y)
      <float s = {0.25}, int8 a = {-4}, int8[4,1] w = {-4, 8, -3, 4}, int8 b = {3}, float t = {0.5},
       int8 c = {-5}> { y = QLinearMatMul (x, s, a, w, s, b, t, c) }"""
    x = np.random.default_rng(0).integers(-8, 8, (64, 4)).astype(np.int8)
    found, wanted = answers(graph, {"x": x})
    np.testing.assert_array_equal(found[0], wanted[0])
    product = (x.astype(int) + 4) @ (np.array([[-4], [8], [-3], [4]]) - 3)
    assert (product % 8 == 4).any(), "no tie was drawn"


def test_scaled_integers_are_floats() -> None:
    graph = """g (int64[N,2] x) => (float[N,2] y)
      { y = ai.onnx.ml.Scaler <offset = [0.5, 30.0], scale = [1.0, 0.07]> (x) }"""
    found, wanted = answers(graph, {"x": np.arange(6).reshape(3, 2)})
    assert found[0].dtype == wanted[0].dtype
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)


def test_trees_send_nan_to_the_false_branch() -> None:
    from tests.conformance.trees import classifier

    model = classifier()
    inputs = {"x": np.array([[np.nan, 1, 1, 1], [1, 1, np.nan, 1], [0, 0, 0, 0]], np.float32)}
    ours = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, inputs)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    np.testing.assert_array_equal(ours[0], wanted[0])
    np.testing.assert_allclose(ours[1], wanted[1], rtol=1e-6)


def test_all_of_them_are_ops_of_onnx() -> None:
    for op in OPS:
        domain = getattr(op, "op_domain", "")
        assert onnx.defs.has(op.__name__, domain), op
