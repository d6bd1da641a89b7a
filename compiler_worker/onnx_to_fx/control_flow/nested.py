"""Emits into the graph of a branch or of a loop's body, which is called with what it uses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from compiler_worker.onnx_to_fx.builder import GraphBuilder, add_placeholder
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import Constant, Dims, Tensor


class NestedBuilder(GraphBuilder):
    """Builds a graph inside of another one, of values of any shape; it owns no weights.

    A node of an outer graph becomes one more input of this one as soon as it is used, because
    torch's control flow passes tensors and sizes to its graphs as arguments only.
    """

    def __init__(self, outer: GraphBuilder) -> None:
        """Start an empty graph below `outer`."""
        super().__init__(outer.float_dtype)
        self.floats = outer.floats
        self._outer = outer
        self.depth = outer.depth + 1
        self.owners = outer.owners
        self.owners[self.graph] = self
        self._lifted: dict[torch.fx.Node, torch.fx.Node] = {}
        self._own: list[torch.fx.Node] = []
        self.anchor = outer.anchor

    def add_input(self, name: str, dtype: torch.dtype, dims: Dims) -> Tensor:
        """Add an input of the caller's own.

        Args:
            name: of the placeholder.
            dtype: element type in the master.
            dims: of the tensor in this graph.
        """
        self._own.append(self._placeholder(name, self._own))
        return Tensor(self._own[-1], dtype, dims)

    def here(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node that stands for a node here: an outer one becomes an input."""
        if node.graph is self.graph:
            return node
        if node not in self._lifted:
            # Through every graph in between.
            name = self._outer.here(node).name
            self._lifted[node] = self._placeholder(name, [*self._own, *self._lifted.values()])
        return self._lifted[node]

    def take(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Make these outer nodes, which hold all that are used, the inputs after the own ones."""
        placeholders = [self.here(node) for node in nodes]
        for before, after in pairwise([*self._own, *placeholders]):
            before.append(after)
        self._lifted = dict(zip(nodes, placeholders, strict=True))

    def lifted(self) -> list[torch.fx.Node]:
        """Return the outer nodes that became inputs, in the order of the inputs."""
        return list(self._lifted)

    def module(self, result: torch.fx.Node | Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
        """Close the graph with what it returns."""
        if isinstance(result, torch.fx.Node):
            self.graph.output(self.here(result))
        else:
            self.graph.output(tuple(map(self.here, result)))
        # Else torch's control flow passes, and holds in memory, what nothing reads.
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return torch.fx.GraphModule(self.root, self.graph, "NestedGraph")

    def outer_dims(self, tensor: Tensor) -> Dims:
        """Return the sizes of a tensor that are known before this graph runs, None elsewhere."""
        return tuple(
            None if isinstance(size, Sym) and size.node.graph is self.graph else size
            for size in tensor.dims
        )

    def declared(self, axis: int | str) -> HostInt | None:
        """Return the size of an axis declared by number or by an input axis's name."""
        return self._outer.declared(axis)

    def _placeholder(self, name: str, before: Sequence[torch.fx.Node]) -> torch.fx.Node:
        # Inputs stand first: the own ones, then those from around, as they were added.
        start = self.graph.inserting_after(before[-1]) if before else self.graph.inserting_before()
        with start:
            return add_placeholder(self.graph, name)

    def leaf(self, node: torch.fx.Node) -> Any:
        """Return what a constant around this graph holds, None for any other node."""
        outer = next((key for key, value in self._lifted.items() if value is node), None)
        return None if outer is None else self.owners[outer.graph].fold(outer)

    def weight(self, constant: Constant) -> Tensor:
        """Return a constant as a parameter or buffer of the outermost module."""
        return self._outer.weight(constant)

    def float_like(self) -> torch.fx.Node:
        """Return the outermost module's empty tensor."""
        return self._outer.float_like()
