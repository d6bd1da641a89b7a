"""Graphs that are right but for one node, attribute or weight; None where there is no such part."""

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from services.contracts.kserve.tensors import Array

# Changes a copy in place; False where the graph has no such part.
GraphFault = Callable[[GraphProto], bool]
_PRODUCTS = ("MatMul", "Gemm", "Conv")
_ACTIVATIONS = ("Gelu", "Relu", "Tanh", "Sigmoid", "Log")


def sabotaged(model: onnx.ModelProto, fault: GraphFault) -> onnx.ModelProto | None:
    """A copy with the fault, None where the model has no part that it could be in."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if not fault(copy.graph):
        return None
    # Types and shapes that were inferred may be others now.
    del copy.graph.value_info[:]
    return copy


def _floats(graph: GraphProto, least_rank: int) -> Iterator[TensorProto]:
    for tensor in graph.initializer:
        is_float = tensor.data_type == TensorProto.FLOAT
        if is_float and len(tensor.dims) >= least_rank and np.prod(tensor.dims) > 1:
            yield tensor


def _put(tensor: TensorProto, array: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _changes_weight(
    choose: Callable[[GraphProto], list[TensorProto]], change: Callable[[Array], Array]
) -> GraphFault:
    def fault(graph: GraphProto) -> bool:
        tensors = choose(graph)
        for tensor in tensors:
            array = numpy_helper.to_array(tensor)
            _put(tensor, change(array.copy()).astype(array.dtype))
        return bool(tensors)

    return fault


def _largest(graph: GraphProto) -> list[TensorProto]:
    return sorted(_floats(graph, 2), key=lambda t: int(np.prod(t.dims)))[-1:]


def _all_weights(graph: GraphProto) -> list[TensorProto]:
    return list(_floats(graph, 2))


def _square(graph: GraphProto) -> list[TensorProto]:
    factors = _read_by(graph, ("MatMul",), 1)
    return [t for t in factors if len(t.dims) == 2 and t.dims[0] == t.dims[1]][:1]


def _read_by(graph: GraphProto, ops: tuple[str, ...], place: int) -> list[TensorProto]:
    """Weights that nodes of these ops have as their input of this number."""
    read = [n.input[place] for n in graph.node if n.op_type in ops and len(n.input) > place]
    known = {tensor.name: tensor for tensor in graph.initializer}
    return [known[name] for name in read if name in known]


def _tables(graph: GraphProto) -> list[TensorProto]:
    return [t for t in _read_by(graph, ("Gather",), 0) if len(t.dims) == 2][:1]


def _last_bias(graph: GraphProto) -> list[TensorProto]:
    added = [t for place in (0, 1) for t in _read_by(graph, ("Add",), place) if len(t.dims) == 1]
    return (_read_by(graph, ("Conv", "Gemm"), 2) + added)[-1:]


def _last_conv(graph: GraphProto) -> list[TensorProto]:
    return _read_by(graph, ("Conv",), 1)[-1:] + _read_by(graph, ("Conv",), 2)[-1:]


def _zero_points(graph: GraphProto) -> list[TensorProto]:
    points = _read_by(graph, ("QuantizeLinear", "DequantizeLinear"), 2)
    return [t for t in points if t.data_type == TensorProto.UINT8][:1]


def _dequantised_points(graph: GraphProto) -> list[TensorProto]:
    return _read_by(graph, ("DequantizeLinear",), 1)[:1]


def _rows_swapped(table: Array) -> Array:
    table[[1, 2]] = table[[2, 1]]
    return table


def _three_bits(weight: Array) -> Array:
    step = np.abs(weight).max() / 3
    return np.rint(weight / step) * step


def _last_zero(weight: Array) -> Array:
    weight[-1] = 0
    return weight


def _of_another_layer(graph: GraphProto) -> bool:
    """The last weight of a shape that several have is the first of them."""
    seen: dict[tuple[int, ...], TensorProto] = {}
    for tensor in reversed(list(_floats(graph, 2))):
        last = seen.setdefault(tuple(tensor.dims), tensor)
        if last is not tensor:
            _put(last, numpy_helper.to_array(tensor))
            return True
    return False


def _becomes(ops: tuple[str, ...], new: str) -> GraphFault:
    """The last node of these ops is another op of one operand."""

    def fault(graph: GraphProto) -> bool:
        nodes = [node for node in graph.node if node.op_type in ops and node.op_type != new]
        for node in nodes[-1:]:
            node.op_type = new
            del node.attribute[:]
        return bool(nodes)

    return fault


def _sets(
    ops: tuple[str, ...], name: str, change: Callable[[AttributeProto], object]
) -> GraphFault:
    """An attribute of the nodes of these ops has another value."""

    def fault(graph: GraphProto) -> bool:
        found = [a for n in graph.node if n.op_type in ops for a in n.attribute if a.name == name]
        for attribute in found:
            attribute.CopyFrom(helper.make_attribute(name, change(attribute)))
        return bool(found)

    return fault


def _epsilon(graph: GraphProto) -> bool:
    nodes = [n for n in graph.node if n.op_type in ("LayerNormalization", "RMSNormalization")]
    for node in nodes:
        kept = [a for a in node.attribute if a.name != "epsilon"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("epsilon", 0.1)])
    return bool(nodes)


def _attention_scale(graph: GraphProto) -> bool:
    """What divides the scores is twice as large."""
    known = {t.name: t for t in graph.initializer if not t.dims}
    for node in graph.node:
        if node.op_type == "Div" and node.input[1] in known and "qk" in node.output[0]:
            tensor = known[node.input[1]]
            _put(tensor, numpy_helper.to_array(tensor) * np.float32(2))
            return True
    return False


def _residual(graph: GraphProto) -> bool:
    """The last sum of two values of the graph is one of them."""
    weights = {tensor.name for tensor in graph.initializer}
    sums = [n for n in graph.node if n.op_type == "Add" and not weights & set(n.input)]
    for node in sums[-1:]:
        node.op_type = "Identity"
        del node.input[0]
    return bool(sums)


def _layer(graph: GraphProto) -> bool:
    """A product with a square weight is left out."""
    names = {tensor.name for tensor in _square(graph)}
    nodes = [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in names]
    for node in nodes[:1]:
        node.op_type = "Identity"
        del node.input[1]
    return bool(nodes)


def _inserted(
    graph: GraphProto, ops: tuple[str, ...], place: int, make: Callable[[str, str], list[NodeProto]]
) -> bool:
    """Put nodes between a value and each node of these ops that reads it."""
    nodes, count = [], 0
    for node in graph.node:
        if node.op_type in ops:
            name = f"sabotaged_{count}"
            nodes += make(node.input[place], name)
            node.input[place] = name
            count += 1
        nodes.append(node)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return bool(count)


def _overflow(graph: GraphProto) -> bool:
    """What products read is held within fp16."""
    bounds = (("fp16_low", -65504.0), ("fp16_high", 65504.0))
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.float32), name) for name, value in bounds
    )

    def clip(read: str, written: str) -> list[NodeProto]:
        return [helper.make_node("Clip", [read, "fp16_low", "fp16_high"], [written])]

    return _inserted(graph, _PRODUCTS, 0, clip)


def _int8_ids(graph: GraphProto) -> bool:
    """Ids pass through eight bits on their way to a table."""
    tables = {tensor.name for tensor in _tables(graph)}
    if not tables:
        return False

    def cast(read: str, written: str) -> list[NodeProto]:
        narrow = f"{written}_narrow"
        return [
            helper.make_node("Cast", [read], [narrow], to=TensorProto.UINT8),
            helper.make_node("Cast", [narrow], [written], to=TensorProto.INT64),
        ]

    return _inserted(graph, ("Gather",), 1, cast)


def _gates(graph: GraphProto) -> bool:
    """The gates of an LSTM in the order that PyTorch has them in."""
    weights = _read_by(graph, ("LSTM", "GRU"), 1) + _read_by(graph, ("LSTM", "GRU"), 2)
    for tensor in weights:
        array = numpy_helper.to_array(tensor)
        parts = np.split(array, 4, axis=1)
        _put(tensor, np.concatenate([parts[i] for i in (0, 2, 3, 1)], axis=1))
    return bool(weights)


def _leaf(graph: GraphProto) -> bool:
    """Leaves of a tree have each other's weights."""
    found = [a for n in graph.node for a in n.attribute if a.name == "target_weights"]
    for attribute in found:
        values = list(attribute.floats)
        values[:8] = reversed(values[:8])
        attribute.CopyFrom(helper.make_attribute(attribute.name, values))
    return bool(found)


def _threshold(graph: GraphProto) -> bool:
    found = [a for n in graph.node for a in n.attribute if a.name == "nodes_values"]
    for attribute in found:
        values = [float(np.float32(v).astype(ml_dtypes.float8_e4m3fn)) for v in attribute.floats]
        attribute.CopyFrom(helper.make_attribute(attribute.name, values))
    return bool(found)


def _words_swapped(graph: GraphProto) -> bool:
    found = [a for n in graph.node for a in n.attribute if a.name == "keys_strings"]
    for attribute in found:
        keys = list(attribute.strings)
        attribute.CopyFrom(helper.make_attribute(attribute.name, [keys[1], keys[0], *keys[2:]]))
    return bool(found)


def _one_sided(pads: AttributeProto) -> list[int]:
    half = len(pads.ints) // 2
    total = [a + b for a, b in zip(pads.ints[:half], pads.ints[half:], strict=True)]
    return [*total, *[0] * half]


def _smallest_k(graph: GraphProto) -> bool:
    nodes = [node for node in graph.node if node.op_type == "TopK"]
    for node in nodes:
        node.attribute.append(helper.make_attribute("largest", 0))
    return bool(nodes)


GRAPH_FAULTS: dict[str, GraphFault] = {
    "a weight zero": _changes_weight(_largest, np.zeros_like),
    "a layer left out": _layer,
    "weights of another layer": _of_another_layer,
    "GELU becomes ReLU": _becomes(("Gelu",), "Relu"),
    "an activation left out": _becomes(_ACTIVATIONS, "Identity"),
    "softmax over another axis": _sets(("Softmax",), "axis", lambda _: -2),
    "epsilon 0.1": _epsilon,
    "a bias left out": _changes_weight(_last_bias, np.zeros_like),
    "a square weight transposed": _changes_weight(_square, np.transpose),
    "scores scaled twice": _attention_scale,
    "zero point ignored": _changes_weight(_zero_points, np.zeros_like),
    "eight bits read by another scale": _changes_weight(_dequantised_points, lambda q: q // 2),
    "two rows of a table swapped": _changes_weight(_tables, _rows_swapped),
    "weights in 3 bits": _changes_weight(_all_weights, _three_bits),
    "last channel zero": _changes_weight(_last_conv, _last_zero),
    "pads on one side": _sets(("Conv",), "pads", _one_sided),
    "a residual left out": _residual,
    "ids pass through 8 bits": _int8_ids,
    "fp16 overflow inside": _overflow,
    "gates in another order": _gates,
    "leaves in another order": _leaf,
    "thresholds in fp8": _threshold,
    "words swapped": _words_swapped,
    "smallest for largest": _smallest_k,
    "nearest for linear": _sets(("Resize",), "mode", lambda _: "nearest"),
}
