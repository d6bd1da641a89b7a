"""The canonical digest of a graph: equal for equal computations, however they are stored.

In the digest: opset, names, types and dimensions of inputs and outputs, every node in order
with its attributes, and the bytes of every weight. Not in it: names of nodes and inner
values, documentation, metadata and the file layout. What a dynamic dimension of an input or
output is called counts: recipes and the buckets of engines use that name. Dimensions
that only branches and loop bodies have are renamed in order of appearance.
"""

import hashlib
from typing import Any

import numpy as np
import onnx_ir as ir


def canonical_digest(model: ir.Model) -> str:
    """Full sha256, in hex, of a model; weights are read where they lie, memory-mapped."""
    return _Digest().of(model)


class _Digest:
    """One walk over one model.

    Attributes:
        refs: name of each value, by place of its definition instead of the exporter's name.
        dims: name by which each named dimension counts.
    """

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.refs: dict[ir.Value | None, str] = {None: ""}
        self.dims: dict[str, str] = {}
        self.num_nodes = 0

    def of(self, model: ir.Model) -> str:
        interface = (*model.graph.inputs, *model.graph.outputs)
        self._add("opsets", sorted((d, v) for d, v in model.opset_imports.items()))
        self._add("interface", [value.name for value in interface])
        self.dims = {name: name for value in interface for name in _dim_names(value)}
        self._graph(model.graph)
        return self.sha.hexdigest()

    def _graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            # By content: equal weights under other names are the same computation.
            self.refs[value] = "w" + _tensor(value.const_value)
        for index, value in enumerate(graph.inputs):
            self.refs[value] = f"i{self.num_nodes}.{index}"
            self._add("input", self._type(value))
        for node in graph:
            self._node(node)
        for value in graph.outputs:
            self._add("output", self._type(value), self.refs[value])

    def _node(self, node: ir.Node) -> None:
        inputs = [self.refs[value] for value in node.inputs]
        self._add("node", node.domain, node.op_type, inputs, len(node.outputs))
        self.num_nodes += 1
        for index, value in enumerate(node.outputs):
            self.refs[value] = f"n{self.num_nodes}.{index}"
        # Exporters write attributes in any order.
        for name, attribute in sorted(node.attributes.items()):
            self._add("attribute", name, attribute.type.name)
            self._attribute(attribute)

    def _attribute(self, attribute: ir.Attr) -> None:
        # By type, not by value: a graph is a sequence of nodes too.
        items = attribute.value if attribute.type.name.endswith("S") else [attribute.value]
        for item in items:
            match item:
                case ir.Graph():
                    self._graph(item)
                case ir.TensorProtocol():
                    self._add(_tensor(item))
                case _:
                    # repr is exact for the numbers and strings that are left.
                    self._add(item)

    def _type(self, value: ir.Value) -> str:
        shape = None if value.shape is None else [self._dim(dim) for dim in value.shape]
        return f"{value.type}{shape}"

    def _dim(self, dim: int | ir.SymbolicDim) -> int | str:
        if isinstance(dim, int):
            return dim
        if dim.value is None:
            return "?"
        return self.dims.setdefault(dim.value, f"d{len(self.dims)}")

    def _add(self, *parts: Any) -> None:
        # repr quotes strings, so no two different parts can run together.
        self.sha.update(repr(parts).encode() + b"\n")


def _dim_names(value: ir.Value) -> list[str]:
    return [dim.value for dim in value.shape or () if not isinstance(dim, int) and dim.value]


def _tensor(tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return "none"
    array = np.ascontiguousarray(tensor.numpy())
    if tensor.dtype is ir.DataType.STRING:
        sha = hashlib.sha256(repr(array.tolist()).encode())
    else:
        # Through uint8, because narrow floats have no buffer format of their own.
        sha = hashlib.sha256(array.reshape(-1).view(np.uint8).data)
    return f"{tensor.dtype.name}{list(array.shape)}{sha.hexdigest()}"
