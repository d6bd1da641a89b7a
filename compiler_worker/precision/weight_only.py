"""Weights of products in eight bits, activations in floats: half or a quarter of the bytes read.

Our own, because NNCF's form for ONNX writes `block_size = 0`, which OpenVINO refuses, and
rounds tables of embeddings too. Rounding needs no samples: a weight's scale is its own
largest value, one for each column that an output is made of.
"""

import numpy as np
import onnx
import onnx_ir as ir

from compiler_worker.precision.free_names import FreeNames
from compiler_worker.precision.limits import check_limits
from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array

_LARGEST = 127.0
# A bias or a small projection is not worth two more nodes.
_MIN_ELEMENTS = 256


def weight_only_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Round the constant right sides of MatMul and Gemm to int8 per column.

    Args:
        model: checked, its weights in memory; it is not changed.

    Raises:
        UnsupportedGraphError: control flow, an old opset, or no such weight.
    """
    found = ir.from_proto(model)
    check_limits(found, Precision.INT8_WEIGHT_ONLY)
    users = [(node, node.inputs[1]) for node in found.graph if node.op_type in ("MatMul", "Gemm")]
    rounded = [(node, weight) for node, weight in users if _is_worth_it(weight)]
    if not rounded:
        raise UnsupportedGraphError(
            "no MatMul or Gemm of the graph has a constant matrix: its weights cannot be "
            f"{Precision.INT8_WEIGHT_ONLY}; build it in fp32 or int8"
        )
    restored: dict[tuple[ir.Value, int], ir.Value] = {}
    names = FreeNames(found.graph)
    for node, weight in rounded:
        assert weight is not None
        axis = 0 if node.op_type == "Gemm" and node.attributes.get_int("transB") else -1
        if (weight, axis) not in restored:
            restored[weight, axis] = _restored(node, weight, axis, names)
        node.replace_input_with(1, restored[weight, axis])
    for weight in {weight for weight, _ in restored}:
        if not weight.uses() and not weight.is_graph_output():
            assert weight.name is not None
            del found.graph.initializers[weight.name]
    return ir.to_proto(found)


def _is_worth_it(weight: ir.Value | None) -> bool:
    if weight is None or weight.const_value is None or weight.is_graph_input():
        return False
    array = weight.const_value
    is_matrix = array.dtype is ir.DataType.FLOAT and len(array.shape) == 2
    return is_matrix and array.size >= _MIN_ELEMENTS


def _restored(user: ir.Node, weight: ir.Value, axis: int, names: FreeNames) -> ir.Value:
    """The weight as its rounded form, brought back to floats."""
    graph = user.graph
    assert weight.const_value is not None
    assert isinstance(graph, ir.Graph)
    array = weight.const_value.numpy()
    axis %= array.ndim
    others = tuple(i for i in range(array.ndim) if i != axis)
    largest = np.abs(array).max(axis=others, keepdims=True)
    # A column of zeros has no largest value; any scale brings it back.
    scale = np.where(largest > 0, largest, 1).astype(np.float32) / np.float32(_LARGEST)
    rounded = np.clip(np.rint(array / scale), -_LARGEST, _LARGEST).astype(np.int8)
    parts = {
        "int8": rounded,
        "scale": scale.reshape(-1),
        "zero": np.zeros(array.shape[axis], np.int8),
    }
    inputs = [
        _constant(graph, names.take(f"{weight.name}_{part}_{axis}"), data)
        for part, data in parts.items()
    ]
    name = names.take(f"{weight.name}_restored_{axis}")
    node = ir.node("DequantizeLinear", inputs, {"axis": axis}, name=name)
    graph.insert_before(user, node)
    output = node.outputs[0]
    output.name = name
    output.type = weight.type
    output.shape = weight.shape
    return output


def _constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value
