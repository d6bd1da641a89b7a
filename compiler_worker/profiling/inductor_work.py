"""A piece of work of Inductor's scheduler: what it computes, and the bytes that it moves.

Inductor records for each piece what it comes from, but that list grows along the graph: what made
an operand stands in it too, though another kernel computed it. What a piece computes itself is
found by going back from each node to the tensors that the piece reads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

_NO_LIMIT = 2**62
_GO_ON = object()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of work: becomes a kernel, or a part of one.

    Attributes:
        node: the scheduler's.
        origins: nodes of the optimised graph; of a library's kernel only the one it computes.
    """

    node: Any
    name: str
    is_extern: bool
    origins: frozenset[Node]

    @classmethod
    def of(cls, node: Any) -> "Piece":
        """Look at a node of the scheduler."""
        found = [leaf.node for leaf in node.get_nodes() if leaf.node is not None]
        origins = frozenset(origin for each in found for origin in each.origins)
        if node.is_extern():
            origins = _own(found[0])
        return cls(node=node, name=node.get_name(), is_extern=node.is_extern(), origins=origins)

    def computed(self, extern: frozenset[Node]) -> frozenset[Node]:
        """The origins that this piece computes itself.

        Args:
            extern: nodes that libraries' kernels compute.
        """
        if self.is_extern:
            return frozenset(map(_without_order, self.origins))
        walk = _Walk(self.node, extern)
        candidates = [node for node in self.origins - extern if not _is_view(node)]
        return frozenset(node for node in candidates if walk.is_computed(node))


class _Walk:
    """Goes back from nodes to what one piece of work reads."""

    def __init__(self, work: Any, extern: frozenset[Node]) -> None:
        self._extern = extern
        self._names: set[str] = set()
        self._read: set[Node] = set()
        self._known: dict[Node, bool | None] = {}
        for leaf in work.get_nodes():
            for dep in leaf.read_writes.reads:
                self._names.add(dep.name)
                buffer = work.scheduler.name_to_buf.get(dep.name)
                if buffer is not None and buffer.node is not None:
                    self._read |= _own(buffer.node)

    def is_computed(self, node: Node) -> bool:
        """Whether all that a node is made of is read, and anything is."""
        # With a stack of our own: a graph may be deeper than Python's.
        stack = [node]
        while stack:
            unknown = [each for each in _operands(stack[-1]) if not self._is_settled(each)]
            if unknown:
                stack += unknown
            else:
                settled = stack.pop()
                self._known[settled] = self._judged(settled)
        return self._known[node] is True

    def _is_settled(self, node: Node) -> bool:
        return node in self._known or self._at_end(node) is not _GO_ON

    def _judged(self, node: Node) -> bool | None:
        """True: made of what is read; False: also of something else; None: of constants."""
        found: set[Any] = set()
        for each in _operands(node):
            end = self._at_end(each)
            found.add(self._known[each] if end is _GO_ON else end)
        return False if False in found else (True if True in found else None)

    def _at_end(self, node: Node) -> Any:
        """The answer at an operand where one need not go further back; else _GO_ON."""
        if node in self._read:
            return True
        if node.op == "placeholder":
            return bool({node.name, str(node.target)} & self._names)
        if node.op == "get_attr":
            return None
        return False if node in self._extern else _GO_ON


def _operands(node: Node) -> list[Node]:
    """What a node is computed from, without sizes: a kernel gets those as arguments."""
    sizes = (int, float, torch.SymInt, torch.SymFloat)
    return [each for each in node.all_input_nodes if not isinstance(each.meta.get("val"), sizes)]


def _own(found: Any) -> frozenset[Node]:
    """The node that a buffer holds: the last of those that it comes from."""
    if (own := found.get_origin_node()) is not None:
        return frozenset([own])
    origins = found.origins
    return frozenset(node for node in origins if not any(user in origins for user in node.users))


def _without_order(node: Node) -> Node:
    """What a node computes whose result Inductor wants in a certain order of strides."""
    is_order = str(node.target) == "prims.inductor_force_stride_order.default"
    return node.all_input_nodes[0] if is_order else node


def _is_view(node: Node) -> bool:
    is_view = getattr(node.target, "is_view", False)
    return bool(is_view) or node.target is torch.ops.aten._unsafe_view.default  # noqa: SLF001


def symbol_values(graph: Any, inputs: Sequence[torch.Tensor]) -> dict[Any, int]:
    """Sizes of the symbols in the inputs, of any shape, which are the last ones of the graph."""
    boxes = [box for box in graph.graph_inputs.values() if hasattr(box, "get_size")]
    return {
        symbol: size
        for box, tensor in zip(boxes[-len(inputs) :], inputs, strict=True)
        for symbol, size in zip(box.get_size(), tensor.shape, strict=True)
        if getattr(symbol, "is_Symbol", False)
    }


def bytes_of(node: Any, graph: Any, known: Mapping[Any, int]) -> int:
    """Every buffer once, and of each no more elements than the node's loops can touch.

    Args:
        node: of Inductor's scheduler; several that are fused are one.
        graph: Inductor's `GraphLowering`, which has the buffers.
        known: by symbol, the size that it has in this run.
    """
    inside = {leaf.get_name() for leaf in node.get_nodes()}
    touched: dict[str, int] = {}
    for leaf in node.get_nodes():
        # A library's kernel has no loops of Inductor's: it touches all of its operands.
        has_loops = hasattr(leaf, "get_ranges") and not leaf.is_extern()
        limit = _NO_LIMIT
        if has_loops:
            limit = math.prod(_numel(ranges, known) for ranges in leaf.get_ranges())
        for dep in [*leaf.read_writes.reads, *leaf.read_writes.writes]:
            if not _stays_inside(node.scheduler, dep.name, inside):
                touched[dep.name] = touched.get(dep.name, 0) + limit
    return sum(
        itemsize * min(elements, limit)
        for name, limit in touched.items()
        for elements, itemsize in _extent(name, node.scheduler, graph, known)
    )


def _stays_inside(scheduler: Any, name: str, inside: set[str]) -> bool:
    """Whether a buffer is made and used up within one kernel, so that it is never in memory."""
    buffer = scheduler.name_to_buf.get(name)
    if buffer is None or buffer.defining_op_name() not in inside:
        return False
    return all(not user.is_weak and user.get_name() in inside for user in buffer.users)


def _extent(
    name: str, scheduler: Any, graph: Any, known: Mapping[Any, int]
) -> Iterator[tuple[int, int]]:
    """Elements and their size: of a buffer, input or constant, or of each part of a result."""
    if name in graph.constants:
        tensor = graph.constants[name]
        yield tensor.numel(), tensor.dtype.itemsize
        return
    buffer = graph.name_to_buffer.get(name) or graph.graph_inputs.get(name)
    if buffer is None:
        return
    for part in _parts(buffer, name, scheduler):
        yield _numel(part.get_size(), known), part.get_dtype().itemsize


def _parts(buffer: Any, name: str, scheduler: Any) -> list[Any]:
    """What a result of several tensors is unpacked into; else the buffer itself."""
    from torch._inductor.ir import MultiOutput, MultiOutputLayout, NoneLayout

    layout = getattr(buffer, "layout", None)
    if isinstance(layout, NoneLayout):
        return []
    if not isinstance(layout, MultiOutputLayout):
        return [buffer]
    users = [getattr(user.node, "node", None) for user in scheduler.name_to_buf[name].users]
    return [each for each in users if isinstance(each, MultiOutput)]


def _numel(sizes: Sequence[Any], known: Mapping[Any, int]) -> int:
    """Elements of a shape; a size that depends on values counts as one."""
    values = [size.xreplace(known) if hasattr(size, "xreplace") else size for size in sizes]
    return math.prod(int(value) if getattr(value, "is_number", True) else 1 for value in values)
