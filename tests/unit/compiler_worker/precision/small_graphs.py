"""Small float32 graphs from x to y, and what typing made of them."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def make(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    *,
    x: tuple[int, list[str | int]] = (FLOAT, ["N", 4]),
    y: tuple[int, list[str | int]] = (FLOAT, ["N", 4]),
    opset: int = 20,
) -> onnx.ModelProto:
    """A model of input x and output y."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """A node of one output, named by that."""
    return helper.make_node(op_type, inputs.split(), [output], name=f"make_{output}", **attributes)


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    """Element type by name, as strict inference finds it."""
    onnx.checker.check_model(model, full_check=True)
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return {value.name: value.type.tensor_type.elem_type for value in values}


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Output y as ONNX Runtime computes it, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])
