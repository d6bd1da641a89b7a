"""Typed graphs: which values become narrow, where casts stand, what the border keeps."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler_worker.precision.typed import typed_model
from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.precision.small_graphs import (
    FLOAT,
    FLOAT16,
    make,
    node,
    run,
    types_of,
)


def ops_of(model: onnx.ModelProto) -> Counter[str]:
    return Counter(entry.op_type for entry in model.graph.node)


def mlp() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 4)).astype(np.float32),
        "scale": np.ones(4, np.float32),
    }
    return make(
        [
            node("MatMul", "x w", "a"),
            node("LayerNormalization", "a scale", "b"),
            node("MatMul", "b w", "c"),
            node("Softmax", "c", "d"),
            node("Add", "d a", "y"),
        ],
        weights,
    )


def test_fp32_is_the_model_itself() -> None:
    model = mlp()
    assert typed_model(model, Precision.FP32) is model


@pytest.mark.parametrize(
    ("precision", "narrow"),
    [(Precision.FP16, FLOAT16), (Precision.BF16, TensorProto.BFLOAT16)],
)
def test_products_and_norms_are_narrow_softmax_is_not(precision: Precision, narrow: int) -> None:
    typed = typed_model(mlp(), precision)
    types = types_of(typed)
    assert types["x"] == types["y"] == FLOAT, "the contract of the model changed"
    assert [types[name] for name in "abc"] == [narrow] * 3
    assert types["d"] == FLOAT
    # In, around softmax, out; the shared weight is one narrow initialiser.
    assert ops_of(typed)["Cast"] == 4
    assert {t.name: t.data_type for t in typed.graph.initializer} == {
        f"w_{precision.value}": narrow,
        f"scale_{precision.value}": narrow,
    }


def test_the_input_is_not_changed() -> None:
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    typed_model(model, Precision.FP16)
    assert model.SerializeToString(deterministic=True) == before


def test_fp16_is_close() -> None:
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    exact = run(mlp(), x)
    error = np.linalg.norm(run(typed_model(mlp(), Precision.FP16), x) - exact)
    # Not zero, or nothing was computed narrow.
    assert 0 < error / np.linalg.norm(exact) < 5e-3


def test_users_share_one_cast() -> None:
    model = make(
        [
            node("Softmax", "x", "s"),
            node("MatMul", "s w", "a"),
            node("MatMul", "s w", "b"),
            node("Add", "a b", "y"),
        ],
        {"w": np.eye(4, dtype=np.float32)},
    )
    typed = typed_model(model, Precision.FP16)
    casts = [entry.input[0] for entry in typed.graph.node if entry.op_type == "Cast"]
    assert sorted(casts) == ["s", "y_fp16"]


def test_positions_are_counted_in_float32() -> None:
    # Rotary positions: frequencies times a counter, then sine. float16 has no 2049.
    model = make(
        [
            node("Cast", "x", "p", to=FLOAT),
            node("MatMul", "p frequencies", "angle"),
            node("Sin", "angle", "y"),
        ],
        {"frequencies": np.float32([[1.0, 0.1, 0.01, 0.001]])},
        x=(TensorProto.INT64, ["N", 1]),
    )
    typed = typed_model(model, Precision.FP16)
    assert set(types_of(typed).values()) == {TensorProto.INT64, FLOAT}
    x = np.int64([[2049], [4095]])
    np.testing.assert_array_equal(run(typed, x), run(model, x))


@pytest.mark.parametrize("is_computed", [True, False])
def test_a_fully_masked_row_stays_finite(is_computed: bool) -> None:
    lowest = np.finfo(np.float32).min
    weights = {"lowest": np.array(lowest, np.float32), "w": np.eye(4, dtype=np.float32)}
    fill = (
        [node("Cast", "m", "f", to=FLOAT), node("Mul", "f lowest", "bias")]
        if is_computed
        else [node("Where", "m lowest zero", "bias")]
    )
    weights |= {"zero": np.array(0, np.float32), "threshold": np.array(0, np.float32)}
    nodes = [
        node("Greater", "x threshold", "m"),
        *fill,
        node("MatMul", "x w", "logits"),
        node("Add", "logits bias", "masked"),
        node("Softmax", "masked", "y"),
    ]
    model = make(nodes, weights)
    x = np.float32([[1, 1, 1, 1], [1, -1, -1, -1]])
    typed = typed_model(model, Precision.FP16)
    onnx.checker.check_model(typed, full_check=True)
    found = run(typed, x)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, run(model, x), atol=1e-3)


def test_infinite_weights_stay_infinite_and_large_ones_finite() -> None:
    values = np.float32([[np.inf, -np.inf, 1e30, -1e30]])
    typed = typed_model(make([node("Min", "x big", "y")], {"big": values}), Precision.FP16)
    stored = numpy_helper.to_array(typed.graph.initializer[0])
    assert stored.tolist() == [[np.inf, -np.inf, 65504.0, -65504.0]]


def test_table_rows_are_data() -> None:
    table = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    model = make(
        [node("Gather", "table x", "row"), node("MatMul", "row w", "y")],
        {"table": table, "w": np.eye(4, dtype=np.float32)},
        x=(TensorProto.INT64, ["N"]),
    )
    typed = typed_model(model, Precision.FP16)
    assert types_of(typed)["row"] == FLOAT16
    assert all(tensor.data_type == FLOAT16 for tensor in typed.graph.initializer)


def test_attention_runs_narrow_and_keeps_its_attributes() -> None:
    model = make(
        [node("Attention", "x x x", "y", scale=0.5)],
        x=(FLOAT, ["B", 2, "T", 4]),
        y=(FLOAT, ["B", 2, "T", 4]),
        opset=23,
    )
    typed = typed_model(model, Precision.FP16)
    types_of(typed)
    attention = next(entry for entry in typed.graph.node if entry.op_type == "Attention")
    assert [attribute.name for attribute in attention.attribute] == ["scale"]
    assert ops_of(typed) == Counter({"Cast": 2, "Attention": 1})
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 4)).astype(np.float32)
    np.testing.assert_allclose(run(typed, x), run(model, x), atol=3e-3)


def test_ops_without_the_type_stay_float32() -> None:
    # Elu takes bfloat16 from opset 22 on.
    model = make(
        [node("MatMul", "x w", "a"), node("Elu", "a", "y")],
        {"w": np.eye(4, dtype=np.float32)},
        opset=20,
    )
    typed = typed_model(model, Precision.BF16)
    assert types_of(typed)["a"] == TensorProto.BFLOAT16
    elu = next(entry for entry in typed.graph.node if entry.op_type == "Elu")
    assert types_of(typed)[elu.input[0]] == FLOAT


def test_double_stays_double() -> None:
    model = make(
        [node("Mul", "x x", "y")],
        x=(TensorProto.DOUBLE, ["N", 4]),
        y=(TensorProto.DOUBLE, ["N", 4]),
    )
    typed = typed_model(model, Precision.FP16)
    assert set(types_of(typed).values()) == {TensorProto.DOUBLE}


def test_bf16_needs_an_opset_that_has_it() -> None:
    with pytest.raises(UnsupportedGraphError, match="bf16 needs opset 13, 12 found"):
        typed_model(make([node("Relu", "x", "y")], opset=12), Precision.BF16)


def test_control_flow_is_refused() -> None:
    value = helper.make_tensor_value_info("z", FLOAT, None)
    graphs = [
        helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [value])
        for op in ("Relu", "Neg")
    ]
    nodes = [
        node("ReduceMax", "x", "top", keepdims=0),
        node("Cast", "top", "c", to=TensorProto.BOOL),
        node("If", "c", "y", then_branch=graphs[0], else_branch=graphs[1]),
    ]
    with pytest.raises(UnsupportedGraphError, match="control flow cannot be typed fp16"):
        typed_model(make(nodes), Precision.FP16)


def test_constants_written_as_nodes_are_weights() -> None:
    constant = helper.make_node(
        "Constant", [], ["w"], value=numpy_helper.from_array(np.eye(4, dtype=np.float32))
    )
    typed = typed_model(make([constant, node("MatMul", "x w", "y")]), Precision.FP16)
    assert [t.data_type for t in typed.graph.initializer] == [FLOAT16]
    assert ops_of(typed) == Counter({"Cast": 2, "MatMul": 1})
