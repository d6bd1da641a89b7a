"""Quantised graphs: where the rounding stands, its form, and what cannot have it."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler_worker.precision.quantised import quantised_model
from compiler_worker.precision.weight_only import weight_only_model
from services.contracts.errors import BuildError, UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from tests.integration.precision.small_nets import (
    attention_inputs,
    attention_net,
    conv_inputs,
    conv_net,
)

Make = Callable[[], onnx.ModelProto]


def rows(arrays: dict[str, Array]) -> list[dict[str, Array]]:
    count = len(next(iter(arrays.values())))
    return [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)]


def run(model: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Its fusions believe that all that is quantised is an integer.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])


def distance(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def sources_of(model: onnx.ModelProto) -> dict[str, list[str]]:
    """By op type, what makes the first two inputs of its nodes: an op type, else the name."""
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    found: dict[str, list[str]] = {}
    for node in model.graph.node:
        found.setdefault(node.op_type, []).extend(makers.get(x, x) for x in node.input[:2])
    return found


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
@pytest.mark.parametrize(
    ("make", "inputs", "product"),
    [(conv_net, conv_inputs, "Conv"), (attention_net, attention_inputs, "MatMul")],
)
def test_products_take_rounded_sides_and_the_result_stays_near(
    make: Make, inputs: Callable[..., dict[str, Array]], product: str, precision: Precision
) -> None:
    model = make()
    before = model.SerializeToString()
    found = quantised_model(model, precision, rows(inputs(24)))
    assert model.SerializeToString() == before
    assert set(sources_of(found)[product]) == {"DequantizeLinear"}
    assert [(x.name, x.type) for x in found.graph.input] == [
        (x.name, x.type) for x in model.graph.input
    ]
    assert [(x.name, x.type) for x in found.graph.output] == [
        (x.name, x.type) for x in model.graph.output
    ]
    fresh = inputs(8, seed=9)
    assert 1e-4 < distance(run(found, fresh), run(model, fresh)) < 0.1


@pytest.mark.parametrize(
    ("precision", "element_type"),
    [(Precision.INT8, TensorProto.INT8), (Precision.FP8, TensorProto.FLOAT8E4M3FN)],
)
def test_one_form_for_every_kind(precision: Precision, element_type: int) -> None:
    """Zero points of zero, in the signed type, also where all values were positive."""
    found = quantised_model(conv_net(), precision, rows(conv_inputs(24)))
    tensors = {tensor.name: tensor for tensor in found.graph.initializer}
    nodes = [node for node in found.graph.node if node.op_type.endswith("quantizeLinear")]
    nodes += [node for node in found.graph.node if node.op_type == "QuantizeLinear"]
    assert nodes
    for node in nodes:
        zeros = tensors[node.input[2]]
        assert zeros.data_type == element_type
        assert not numpy_helper.to_array(zeros).astype(np.float32).any()
        assert "output_dtype" not in {attribute.name for attribute in node.attribute}


def test_attention_and_tables_are_left_in_floats() -> None:
    found = quantised_model(attention_net(), Precision.INT8, rows(attention_inputs(24)))
    sources = sources_of(found)
    assert "DequantizeLinear" not in sources["Attention"]
    assert "DequantizeLinear" not in sources["Gather"]


def test_equal_samples_give_equal_bytes() -> None:
    first, second = (
        quantised_model(attention_net(), Precision.INT8, rows(attention_inputs(24)))
        for _ in range(2)
    )
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )


def test_wider_samples_give_wider_scales() -> None:
    def scale_of_the_input(factor: float) -> Array:
        feeds = rows({"image": conv_inputs(24)["image"] * np.float32(factor)})
        graph = quantised_model(conv_net(), Precision.INT8, feeds).graph
        node = next(node for node in graph.node if node.input[0] == "image")
        return next(numpy_helper.to_array(t) for t in graph.initializer if t.name == node.input[1])

    np.testing.assert_allclose(scale_of_the_input(4), 4 * scale_of_the_input(1), rtol=1e-5)


def test_a_feed_that_the_model_cannot_run_is_told_with_the_reason() -> None:
    feeds = [{"image": np.zeros((1, 3, 9, 16), np.float32)}] * 16
    with pytest.raises(BuildError, match="quantising to int8 failed: .*image"):
        quantised_model(conv_net(), Precision.INT8, feeds)


def sums(opset: int = 20) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def test_a_graph_without_products_is_refused() -> None:
    feeds = rows({"x": np.ones((16, 4), np.float32)})
    with pytest.raises(UnsupportedGraphError, match="no product .* to int8: .* build it in fp32"):
        quantised_model(sums(), Precision.INT8, feeds)
    with pytest.raises(UnsupportedGraphError, match="no MatMul or Gemm"):
        weight_only_model(sums())


@pytest.mark.parametrize(
    ("precision", "opset", "told"),
    [(Precision.INT8, 12, "needs opset 13, 12 found"), (Precision.FP8, 18, "needs opset 19, 18")],
)
def test_an_old_opset_is_refused(precision: Precision, opset: int, told: str) -> None:
    with pytest.raises(UnsupportedGraphError, match=told):
        quantised_model(sums(opset), precision, [])


def test_weight_only_rounds_matrices_and_nothing_else() -> None:
    model = attention_net()
    found = weight_only_model(model)
    sources = sources_of(found)
    assert set(sources["MatMul"][1::2]) == {"DequantizeLinear"}
    assert "QuantizeLinear" not in sources
    assert "DequantizeLinear" not in sources["MatMul"][0::2]
    names = {tensor.name for tensor in found.graph.initializer}
    assert "embedding" in names
    assert "wq" not in names
    fresh = attention_inputs(8, seed=9)
    assert 1e-4 < distance(run(found, fresh), run(model, fresh)) < 0.02


def test_the_scale_of_a_transposed_weight_is_by_its_rows() -> None:
    model = conv_net()
    found = weight_only_model(model)
    node = next(node for node in found.graph.node if node.op_type == "DequantizeLinear")
    tensors = {t.name: numpy_helper.to_array(t) for t in found.graph.initializer}
    rounded, scale = tensors[node.input[0]], tensors[node.input[1]]
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w3")
    assert scale.shape == (10,)
    np.testing.assert_allclose(rounded * scale[:, None], weight, atol=scale.max() / 2)
    assert (np.abs(rounded).max(axis=1) == 127).all()
