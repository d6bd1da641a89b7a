"""Seeded damage to valid ONNX models: to their bytes, ops, attributes, shapes, edges, weights."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.conformance.tiny_model import tiny_model

_OPS = (
    "Add",
    "Sub",
    "MatMul",
    "Relu",
    "Softmax",
    "Concat",
    "Gather",
    "Transpose",
    "Reshape",
    "Loop",
    "NonMaxSuppression",
    "Conv",
    "Cast",
    "Identity",
    "ReduceSum",
    "Unsqueeze",
    "TopK",
    "Where",
    "NoSuchOp",
)
_TYPES = (0, 2, 6, 7, 8, 10, 11, 16, 17, 23, 99)
_OPSETS = (-3, 0, 1, 6, 7, 9, 13, 18, 23, 26, 28, 999, 2**40)
_HUGE = 2**62


def mutated(seed: int) -> tuple[str, bytes]:
    """What was damaged, and the serialised model; the same for the same seed."""
    rng = Random(seed)
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice((tiny_model(), _small_cnn())))
    what = rng.choice(("bytes", *_DAMAGES))
    if what == "bytes":
        data = model.SerializeToString()
        for _ in range(rng.choice((1, 1, 3))):
            data = _damaged_bytes(rng, data)
        return what, data
    _DAMAGES[what](rng, model.graph if what != "opset" else model)
    return what, model.SerializeToString()


def _small_cnn() -> onnx.ModelProto:
    """x: float32 [batch, 3, 16, 16] through one block of everything an image model has."""
    rng = np.random.default_rng(3)
    shapes = {
        "w": (4, 3, 3, 3),
        "b": (4,),
        "s": (4,),
        "o": (4,),
        "m": (4,),
        "v": (4,),
        "fc": (4, 5),
    }
    weights = {name: np.abs(rng.standard_normal(shape)) for name, shape in shapes.items()}
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]
        ),
        helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"], axis=1),
        helper.make_node("Gemm", ["f", "fc"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _damaged_bytes(rng: Random, data: bytes) -> bytes:
    start, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 4, 16, 64))
    before, hit, after = data[:start], data[start : start + length], data[start + length :]
    flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in hit)
    instead = rng.choice((flipped, b"", hit + hit, rng.randbytes(length) + hit, bytes(len(hit))))
    return before + instead + after


def _op(rng: Random, graph: onnx.GraphProto) -> None:
    rng.choice(graph.node).op_type = rng.choice(_OPS)


def _attribute(rng: Random, graph: onnx.GraphProto) -> None:
    node = rng.choice(graph.node)
    names = [attribute.name for attribute in node.attribute] or ["axis", "to", "group"]
    name = rng.choice(names)
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    value: Any = rng.choice((None, -7, _HUGE, float("nan"), [0, 5, -1], "words"))
    if value is not None:
        renamed = rng.choice((name, name, name, "no_such_attribute"))
        node.attribute.append(helper.make_attribute(renamed, value))


def _shape(rng: Random, graph: onnx.GraphProto) -> None:
    tensor = rng.choice([*graph.input, *graph.output]).type.tensor_type
    dim = rng.choice(tensor.shape.dim)
    change = rng.choice(("size", "name", "unknown", "rank", "type"))
    match change:
        case "size":
            dim.dim_value = rng.choice((0, -5, 1, _HUGE))
        case "name":
            dim.dim_param = "other"
        case "unknown":
            dim.Clear()
        case "rank":
            tensor.shape.dim.add().dim_value = 3
        case _:
            tensor.elem_type = rng.choice(_TYPES)


def _edge(rng: Random, graph: onnx.GraphProto) -> None:
    node, other = rng.choice(graph.node), rng.choice(graph.node)
    match rng.choice(("swap", "drop", "other", "twice", "cycle")):
        case "swap":
            node.input[0], node.input[-1] = node.input[-1], node.input[0]
        case "drop":
            del node.input[-1]
        case "other":
            node.input[0] = other.output[0]
        case "twice":
            node.output[0] = other.output[0]
        case _:
            node.input[0] = node.output[0]


def _weight(rng: Random, graph: onnx.GraphProto) -> None:
    tensor = rng.choice(graph.initializer)
    match rng.choice(("dims", "type", "short", "nan", "external")):
        case "dims":
            tensor.dims.append(rng.choice((2, -1, _HUGE)))
        case "type":
            tensor.data_type = rng.choice(_TYPES)
        case "short":
            tensor.raw_data = tensor.raw_data[:-3]
        case "nan":
            tensor.raw_data = b"\xff" * len(tensor.raw_data)
        case _:
            tensor.data_location = TensorProto.EXTERNAL
            place = rng.choice(("../../etc/passwd", "missing.bin", "/dev/zero"))
            tensor.external_data.add(key="location", value=place)


def _order(rng: Random, graph: onnx.GraphProto) -> None:
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _opset(rng: Random, model: onnx.ModelProto) -> None:
    model.opset_import[0].version = rng.choice(_OPSETS)


_DAMAGES: dict[str, Callable[[Random, Any], None]] = {
    "op": _op,
    "attribute": _attribute,
    "shape": _shape,
    "edge": _edge,
    "weight": _weight,
    "order": _order,
    "opset": _opset,
}
