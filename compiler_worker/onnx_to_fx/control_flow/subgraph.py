"""A graph that a node holds as an attribute: the body of a loop, the branch of a choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx

from compiler_worker.master.walk import nested
from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.constants import constant_from_tensor
from compiler_worker.onnx_to_fx.scope import NameScope
from compiler_worker.onnx_to_fx.values import AnyValue
from services.contracts.errors import UnsupportedGraphError

Convert: TypeAlias = Callable[[onnx.NodeProto, NameScope], None]
# Constants of graphs inside of nodes, by their serialised form.
Kept: TypeAlias = dict[bytes, AnyValue]


class Subgraph:
    """A graph inside of a node; the names around the node are in its scope.

    Attributes:
        proto: the graph itself.
        num_nodes: nodes in it, those of the graphs inside of it included.
    """

    def __init__(
        self, proto: onnx.GraphProto, scope: NameScope, convert: Convert, kept: Kept
    ) -> None:
        """Remember the graph and what is around it.

        Args:
            proto: the graph itself.
            scope: names of the graph that the node is in.
            convert: emits one node into the graph of a scope.
            kept: constants that were read before; one dictionary for all of a model.
        """
        self.proto = proto
        self.num_nodes = sum(1 for _ in nested(proto.node))
        self._scope = scope
        self._convert = convert
        self._kept = kept

    def inline(
        self, inputs: Sequence[AnyValue], graph: GraphBuilder | None = None
    ) -> list[AnyValue]:
        """Emit its nodes for these inputs and return its outputs.

        Args:
            inputs: a value for each of its inputs, in order.
            graph: where nodes are emitted; where the node stands by default.

        Raises:
            UnsupportedGraphError: something in it has no exact translation.
        """
        scope = NameScope(graph or self._scope.graph, outer=self._scope)
        if self.proto.sparse_initializer:
            raise UnsupportedGraphError("a sparse initializer is not translated")
        if len(inputs) != len(self.proto.input):
            raise UnsupportedGraphError(
                f"graph '{self.proto.name}' takes {len(self.proto.input)} inputs, "
                f"{len(inputs)} are given"
            )
        for tensor in self.proto.initializer:
            self._define(tensor.name, tensor, scope)
        for entry, value in zip(self.proto.input, inputs, strict=True):
            scope.define(entry.name, value)
        for node in self.proto.node:
            if node.op_type == "Constant" and len(node.output) == 1:
                self._define(node.output[0], node, scope)
            else:
                self._convert(node, scope)
        return [self._output(entry.name, scope) for entry in self.proto.output]

    def _define(
        self, name: str, proto: onnx.TensorProto | onnx.NodeProto, scope: NameScope
    ) -> None:
        """Bind a constant; every time that the graph is inlined shares one buffer of it."""
        # By content: names inside a body may come again in another one, or in each round.
        key = proto.SerializeToString(deterministic=True)
        if key in self._kept:
            scope.define(name, self._kept[key])
            return
        if isinstance(proto, onnx.TensorProto):
            scope.define(name, constant_from_tensor(name, proto))
        else:
            self._convert(proto, scope)
        self._kept[key] = self._output(name, scope)

    def _output(self, name: str, scope: NameScope) -> AnyValue:
        value = scope.find(name)
        if value is None:
            raise UnsupportedGraphError(f"output '{name}' is produced by no node")
        return scope.graph.running(value)
