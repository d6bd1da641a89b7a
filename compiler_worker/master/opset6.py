"""Models of opset 6 in opset 7, where broadcasting took today's form."""

from __future__ import annotations

import onnx
from onnx import helper

from compiler_worker.master.walk import domain_of, refusal

_BROADCASTING = {
    *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "PRelu")
}
_MODAL = ("BatchNormalization", "Dropout")
# What of theirs changed with opset 7 is not written in it.
_CHANGED = ("GRU", "If", "LSTM", "Loop", "RNN", "Upsample")


def at_opset_7(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of opset 6 in opset 7, any other one as it is.

    Raises:
        UnsupportedGraphError: a node that opset 7 has no equal for; names it.
    """
    versions = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    if versions.get("") != 6:
        return model
    ranks = _ranks(model)
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    del newer.graph.node[:]
    for node in model.graph.node:
        newer.graph.node.extend(_at_opset_7(node, ranks))
    for entry in newer.opset_import:
        entry.version = 7 if domain_of(entry.domain) == "" else entry.version
    return newer


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    return {
        **{
            v.name: len(v.type.tensor_type.shape.dim)
            for v in values
            if v.type.tensor_type.HasField("shape")
        },
        **{tensor.name: len(tensor.dims) for tensor in graph.initializer},
    }


def _at_opset_7(node: onnx.NodeProto, ranks: dict[str, int]) -> list[onnx.NodeProto]:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kind = node.op_type
    if kind in _CHANGED:
        raise refusal(node, 6, "it is another op since opset 7")
    if kind in _MODAL and not given.get("is_test"):
        raise refusal(node, 6, "training mode (is_test 0) is not translated")
    if kind == "AveragePool" and (
        any(given.get("pads", [])) or given.get("auto_pad", b"NOTSET") != b"NOTSET"
    ):
        raise refusal(node, 6, "whether padding counts is not defined before opset 7")
    newer = onnx.NodeProto()
    newer.CopyFrom(node)
    del newer.attribute[:]
    gone = {"broadcast", "axis"} if kind in _BROADCASTING else {"broadcast", "is_test"}
    newer.attribute.extend(a for a in node.attribute if a.name not in gone)
    if kind not in _BROADCASTING:
        return [newer]
    after = _axes_after(node, given, ranks)
    if not after:
        return [newer]
    first = ranks[node.input[1]]
    placed = f"{node.output[0]}_placed"
    newer.input[1] = placed
    axes = list(range(first, first + after))
    return [helper.make_node("Unsqueeze", [node.input[1]], [placed], axes=axes), newer]


def _axes_after(node: onnx.NodeProto, given: dict[str, int], ranks: dict[str, int]) -> int:
    """How many axes of the first operand come after those that the second one stands at."""
    rank, second = (ranks.get(name) for name in node.input[:2])
    if rank is None or second is None:
        raise refusal(node, 6, "the number of axes of its operands cannot be inferred")
    # Its slope is per channel, axis 1, whatever the number of axes.
    if node.op_type == "PRelu":
        return max(0, rank - 1 - second)
    if not given.get("broadcast"):
        if rank != second:
            raise refusal(node, 6, "operands of different shapes without broadcast")
        return 0
    axis = given.get("axis", rank - second)
    after = rank - (axis + rank if axis < 0 else axis) - second
    if after < 0:
        raise refusal(node, 6, f"axis {axis} leaves no room for {second} axes of {rank}")
    return after
