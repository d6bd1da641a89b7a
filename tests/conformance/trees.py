"""Small models of ai.onnx.ml: what scikit-learn's converters write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Two trees over four features: splits of the features 0 to 2, leaves at the other nodes.
_NODES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ"] * 2 + ["LEAF"] * 3 + ["BRANCH_LEQ"] + ["LEAF"] * 2,
    "nodes_values": [0.5, 0.25, 0.0, 0.0, 0.0, 0.6, 0.0, 0.0],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
}
_LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}
_WEIGHTS = [1.0, 2.0, 3.5, 0.5, -0.5]


def regressor() -> onnx.ModelProto:
    """Scale the features, then add up two trees."""
    scaler = _node("Scaler", ["x"], ["s"], offset=[0.1, 0.0, 0.0, 0.0], scale=[1.0, 2.0, 1.0, 0.5])
    leaves = {f"target_{name}": values for name, values in _LEAVES.items()}
    trees = _node(
        "TreeEnsembleRegressor",
        ["s"],
        ["y"],
        n_targets=1,
        target_ids=[0] * 5,
        target_weights=_WEIGHTS,
        **leaves,
        **_NODES,
    )
    return _model([scaler, trees], [_info("y", TensorProto.FLOAT, ["batch", 1])])


def classifier(*, has_maps: bool = False) -> onnx.ModelProto:
    """Two trees that vote for one of three classes, after an op of ai.onnx; then ZipMap."""
    leaves = {f"class_{name}": values for name, values in _LEAVES.items()}
    trees = _node(
        "TreeEnsembleClassifier",
        ["s"],
        ["label", "scores"],
        class_ids=[0, 1, 2, 0, 1],
        class_weights=_WEIGHTS,
        classlabels_int64s=[10, 20, 30],
        post_transform="SOFTMAX",
        **leaves,
        **_NODES,
    )
    outputs = [
        _info("label", TensorProto.INT64, ["batch"]),
        _info("scores", TensorProto.FLOAT, ["batch", 3]),
    ]
    nodes = [helper.make_node("Sqrt", ["x"], ["s"], name="root"), trees]
    if has_maps:
        nodes.append(_node("ZipMap", ["scores"], ["maps"], classlabels_int64s=[10, 20, 30]))
        number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        kind = helper.make_sequence_type_proto(
            helper.make_map_type_proto(TensorProto.INT64, number)
        )
        outputs[1] = helper.make_value_info("maps", kind)
    return _model(nodes, outputs)


def forest(*, has_doubles: bool) -> onnx.ModelProto:
    """Ten trees that vote for the second of two classes with a tenth each, of inputs in doubles.

    Args:
        has_doubles: thresholds and votes are doubles too.
    """
    numbers = {"nodes_values": [0.0] * 30, "class_weights": [0.0, 0.1] * 10}
    given: dict[str, Any] = dict(numbers)
    if has_doubles:
        given = {
            f"{name}_as_tensor": numpy_helper.from_array(np.array(values), name)
            for name, values in numbers.items()
        }
    trees = _node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "scores"],
        nodes_treeids=[tree for tree in range(10) for _ in range(3)],
        nodes_nodeids=[0, 1, 2] * 10,
        nodes_featureids=[feature for tree in range(10) for feature in (tree, 0, 0)],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 10,
        nodes_truenodeids=[1, 0, 0] * 10,
        nodes_falsenodeids=[2, 0, 0] * 10,
        class_treeids=[tree for tree in range(10) for _ in range(2)],
        class_nodeids=[1, 2] * 10,
        class_ids=[0] * 20,
        classlabels_int64s=[0, 1],
        **given,
    )
    outputs = [
        _info("label", TensorProto.INT64, ["batch"]),
        _info("scores", TensorProto.FLOAT, ["batch", 2]),
    ]
    return _model([trees], outputs, 10, TensorProto.DOUBLE)


def passengers() -> onnx.ModelProto:
    """A classifier of [age, a column that no tree reads, fare], as scikit-learn's forests are."""
    trees = _node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "scores"],
        nodes_treeids=[0, 0, 0, 0, 0],
        nodes_nodeids=[0, 1, 2, 3, 4],
        nodes_featureids=[0, 2, 0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
        nodes_values=[62.5, 250.0, 0.0, 0.0, 0.0],
        nodes_truenodeids=[1, 3, 0, 0, 0],
        nodes_falsenodeids=[2, 4, 0, 0, 0],
        class_treeids=[0, 0, 0],
        class_nodeids=[2, 3, 4],
        class_ids=[0, 1, 2],
        class_weights=[1.0, 1.0, 1.0],
        classlabels_int64s=[0, 1, 2],
    )
    outputs = [
        _info("label", TensorProto.INT64, ["batch"]),
        _info("scores", TensorProto.FLOAT, ["batch", 3]),
    ]
    return _model([trees], outputs, 3)


def scaled() -> onnx.ModelProto:
    """A logistic regression of [age, a column of spread 1, fare] behind its StandardScaler."""
    scaler = _node("Scaler", ["x"], ["s"], offset=[300.0, 0.0, 900.0], scale=[0.05, 1.0, 0.01])
    linear = _node(
        "LinearClassifier",
        ["s"],
        ["label", "scores"],
        coefficients=[-1.0, -0.5, -1.0, 1.0, 0.5, 1.0],
        intercepts=[0.1, -0.1],
        classlabels_ints=[0, 1],
        post_transform="LOGISTIC",
    )
    outputs = [
        _info("label", TensorProto.INT64, ["batch"]),
        _info("scores", TensorProto.FLOAT, ["batch", 2]),
    ]
    return _model([scaler, linear], outputs, 3)


def _node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        op_type, inputs, outputs, name=op_type.lower(), domain="ai.onnx.ml", **attributes
    )


def _info(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    num_features: int = 4,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    inputs = [_info("x", kind, ["batch", num_features])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "trees", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
