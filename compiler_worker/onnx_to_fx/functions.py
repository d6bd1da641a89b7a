"""Ops that ONNX itself writes in other ops: those take the place of one without a converter."""

from __future__ import annotations

from typing import Any

import onnx

from compiler_worker.master.walk import graphs_of, nested
from compiler_worker.onnx_to_fx.dtypes import onnx_type_from_torch
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import AnyValue, OptionalValue, SequenceValue


def function_of(op: Op) -> onnx.FunctionProto | None:
    """Return the body of an op for this very node, None where ONNX gives none for it."""
    # onnx's stubs lack the methods by version.
    schema: Any = op.schema
    version = _newest(schema.function_opset_versions, op.opset)
    if version is not None:
        return _of_node(op, schema.get_function_with_opset_version(version))
    version = _newest(schema.context_dependent_function_opset_versions, op.opset)
    # Without a type of what is given, onnx 1.23 ends the process.
    if version is None or any(
        isinstance(value, SequenceValue | OptionalValue) for value in op.inputs
    ):
        return None
    _refuse_captures(op)
    types = [_type_of(value).SerializeToString() for value in op.inputs]
    node = op.proto.SerializeToString()
    made = schema.get_context_dependent_function_with_opset_version(version, node, types)
    return _of_node(op, made) if made else None


def _newest(versions: list[int], opset: int) -> int | None:
    """Return the body's opset that fits best; all bodies of one version of an op mean the same."""
    fitting = [version for version in versions if version <= opset]
    # What a body is written in counts inside of it alone, so a newer one serves an older graph.
    return max(fitting, default=min(versions, default=None))


def _type_of(value: AnyValue | None) -> onnx.TypeProto:
    """Return the element type and known sizes of a tensor; nothing for an input left out."""
    if value is None or isinstance(value, SequenceValue | OptionalValue):
        return onnx.TypeProto()
    sizes = [size if isinstance(size, int) else None for size in value.dims]
    return onnx.helper.make_tensor_type_proto(onnx_type_from_torch(value.dtype), sizes)


def _of_node(op: Op, made: bytes) -> onnx.FunctionProto:
    """Put the node's attributes and the inputs that it leaves out into the body."""
    body = onnx.FunctionProto.FromString(made)
    given = {a.name: a for a in op.proto.attribute}
    known = {name: a.default_value for name, a in op.schema.attributes.items()}
    absent = {
        name
        for index, name in enumerate(body.input)
        if index >= len(op.inputs) or op.inputs[index] is None
    }
    # A body names its parameters; here each is the node's own value, or ONNX's default.
    for node in nested(body.node):
        node.input[:] = ["" if name in absent else name for name in node.input]
        # A list of its own: a repeated field that shrinks while it is iterated skips entries.
        for attribute in [a for a in node.attribute if a.ref_attr_name]:
            node.attribute.remove(attribute)
            value = given.get(attribute.ref_attr_name) or known.get(attribute.ref_attr_name)
            if value is not None and value.type != onnx.AttributeProto.UNDEFINED:
                placed: Any = onnx.AttributeProto()
                placed.CopyFrom(value)
                # The body's op may call the attribute otherwise than the node that it stands for.
                placed.name = attribute.name
                node.attribute.append(placed)
    return body


def _refuse_captures(op: Op) -> None:
    """Refuse graphs that use names around the node: in a body these may be others."""
    for graph in (graph for a in op.proto.attribute for graph in graphs_of(a)):
        nodes = list(nested(graph.node))
        own = {entry.name for entry in graph.input} | {entry.name for entry in graph.initializer}
        made = {name for node in nodes for name in node.output}
        taken = {name for node in nodes for name in node.input} - own - made - {""}
        if taken:
            raise op.refuse(f"graph '{graph.name}' uses '{min(taken)}' from around the node")
