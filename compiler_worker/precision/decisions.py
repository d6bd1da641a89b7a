"""Which nodes of a graph decide, and so run in the master's own types in a float64 reference.

A decision is where the least rounding changes everything: an integer made of a float, a
comparison, a number that is rounded. T5's buckets are `Log(x) / 2.7725887 * 8` cast to an
integer: in float64 that is 3.9999999 where every float32 engine gets 4, and another row of a
table is read. So a decision is made in the master's types, as is all that leads to it from
inputs and weights alone. What a sum of many terms goes into has no one value in float32: it
stays float64 up to the decision, and is rounded there.
"""

from collections.abc import Iterator

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from compiler_worker.precision.policy import is_sum

_FLOAT32 = ir.DataType.FLOAT
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
# These jump as well, and give floats.
_JUMPS = frozenset({"Ceil", "DequantizeLinear", "Floor", "Mod", "Range", "Round", "Sign"})
# These give integers, and look at no element.
_LOOKS_AT_SHAPE = frozenset({"Shape", "Size"})


def deciding_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """First outputs of the nodes that decide or lead to a decision, bodies of nodes included.

    Args:
        model: without functions of its own; types that it does not declare are inferred.
    """
    graph = ir.from_proto(model)
    # The pass takes every value for a tensor.
    if all(_is_plain(node) for node in graph.graph.all_nodes() if not _has_body(node)):
        passes.ShapeInferencePass()(graph)
    blurred = _blurred(graph)
    waiting = [node for node in graph.graph.all_nodes() if _decides(node)]
    found: set[ir.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found and _is_plain(node):
            found.add(node)
            waiting += [maker for value, maker in _makers(node) if value not in blurred]
    return frozenset(output.name for node in found for output in node.outputs if output.name)


def _blurred(model: ir.Model) -> set[ir.Value]:
    """Floats that a sum of many terms went into, or that are known only inside of a loop."""
    found = {
        value
        for graph in model.graphs()
        if graph is not model.graph
        for value in graph.inputs
        if _is_float(value)
    }
    for node in model.graph.all_nodes():
        is_blurred = is_sum(node) or _has_body(node) or not found.isdisjoint(node.inputs)
        if is_blurred:
            found.update(value for value in node.outputs if _is_float(value))
    return found


def _decides(node: ir.Node) -> bool:
    if node.op_type in _LOOKS_AT_SHAPE:
        return False
    reads = any(value is not None and value.dtype is _FLOAT32 for value in node.inputs)
    used = (value for value in node.outputs if value.uses() or value.is_graph_output())
    gives = any(value.dtype not in (None, *_FLOATS) for value in used)
    return reads and (gives or node.op_type in _JUMPS)


def _makers(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Node]]:
    for value in node.inputs:
        maker = None if value is None else value.producer()
        if value is not None and maker is not None:
            yield value, maker


def _is_plain(node: ir.Node) -> bool:
    """Whether it takes and gives tensors alone, and has no graph inside."""
    values = (value for value in (*node.inputs, *node.outputs) if value is not None)
    is_tensors = all(
        value.type is None or isinstance(value.type, ir.TensorType) for value in values
    )
    return is_tensors and not _has_body(node)


def _has_body(node: ir.Node) -> bool:
    return any(isinstance(attribute.value, ir.Graph) for attribute in node.attributes.values())


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()
