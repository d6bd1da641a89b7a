"""Reads and changes one exported graph: what every rewrite is written with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
CASTS = (aten.to.dtype, aten._to_copy.default)  # noqa: SLF001 - an op of torch
RESHAPES = (aten.reshape.default, aten.view.default)
NARROW = (torch.float16, torch.bfloat16)
Size = int | torch.SymInt


class Editor:
    """A graph of ATen calls whose weights are attributes of its module.

    Every node carries a fake tensor of its result (`meta["val"]`), from the export or from
    `call`, so that rewrites may ask for types and sizes; sizes can be symbols. A weight is of any
    shape; those that are joined, [..., M] each, differ in M alone.

    Attributes:
        counts: how often each rewrite applied, by name.
        joined: by name of a new weight that others make up along its last axis: those.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.counts: dict[str, int] = {}
        self.joined: dict[str, tuple[torch.Tensor, ...]] = {}
        self._names = iter(range(2**31))
        vals = (node.meta.get("val") for node in module.graph.nodes)
        self._mode: FakeTensorMode = next(
            (val.fake_mode for val in vals if isinstance(val, FakeTensor)), None
        ) or FakeTensorMode(allow_non_fake_inputs=True)

    def calls(self, *targets: Any) -> Iterator[fx.Node]:
        """The nodes that call one of these, in order; the graph may change on the way."""
        # A copy, as rewrites add and erase nodes; erased ones are still in it.
        for node in list(self.module.graph.nodes):
            if is_call(node, *targets) and not node._erased:  # noqa: SLF001
                yield node

    def weight(self, node: Any) -> torch.Tensor | None:
        """The tensor that a node names; None when it is computed, or no node."""
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            return None
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value if isinstance(value, torch.Tensor) else None

    def add_weight(self, tensor: torch.Tensor, before: fx.Node) -> fx.Node:
        """A new weight of the module, and its node."""
        name = next(n for i in self._names if not hasattr(self.module, n := f"rewritten_{i}"))
        self.module.register_buffer(name, tensor)
        with self.module.graph.inserting_before(before):
            node = self.module.graph.get_attr(name)
        # static_shapes: sizes of a weight are numbers, never symbols.
        node.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
        return node

    def join_weights(self, tensors: Sequence[torch.Tensor], before: fx.Node) -> fx.Node:
        """A new weight, [..., sum of columns]: these, [..., columns], along the last axis."""
        parts = tuple(tensor.detach() for tensor in tensors)
        node = self.add_weight(torch.cat(parts, dim=-1), before)
        self.joined[str(node.target)] = parts
        return node

    def call(self, before: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Insert a call, its result's type and sizes inferred.

        Args:
            before: the node that the call is inserted before.
            target: an ATen overload.
            *args: nodes or constants, by place.
            **kwargs: nodes or constants, by name.
        """
        with self.module.graph.inserting_before(before):
            node = self.module.graph.call_function(target, args, kwargs)
        fakes = fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
        with self._mode:
            node.meta["val"] = target(*fakes[0], **fakes[1])
        return node

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Have every reader of a node read another one, and take the node away."""
        old.replace_all_uses_with(new)
        self.module.graph.erase_node(old)

    def finish(self) -> None:
        """Remove what is not read any more, weights included, and check the graph."""
        self.module.graph.eliminate_dead_code()
        self.module.graph.lint()
        self.module.delete_all_unused_submodules()
        used = {str(n.target) for n in self.module.graph.nodes if n.op == "get_attr"}
        for name in [*dict(self.module.named_parameters()), *dict(self.module.named_buffers())]:
            # Graphs that a branch or a loop runs may hold weights of their own.
            if not any(name == each or name.startswith(f"{each}.") for each in used):
                self._drop_weight(name)
        self.module.recompile()

    def _drop_weight(self, name: str) -> None:
        owner, _, attribute = name.rpartition(".")
        delattr(self.module.get_submodule(owner), attribute)


def is_call(node: Any, *targets: Any) -> bool:
    """Whether a node calls one of these functions."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def is_addition(node: Any) -> bool:
    """Whether a node adds its two operands up."""
    # torch's sum may scale the second one first: `x + alpha * y`.
    return is_call(node, aten.add.Tensor) and bool(argument(node, 2, "alpha", 1) == 1)


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument that may be given by place or by name.

    Args:
        node: a call.
        index: its place among the positional arguments.
        name: of the schema.
        default: for a call that leaves it out.
    """
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(name, default)


def only_user(node: fx.Node) -> fx.Node | None:
    """The one reader of a node; None when there are none or several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def dtype_of(node: Any) -> torch.dtype | None:
    """The element type of a node's result; None for what is no tensor."""
    val = _val(node)
    return val.dtype if isinstance(val, torch.Tensor) else None


def shape_of(node: Any) -> tuple[Size, ...]:
    """The sizes of a node's result; () for scalars and for what is no tensor."""
    val = _val(node)
    return tuple(val.shape) if isinstance(val, torch.Tensor) else ()


def rank_of(node: Any) -> int:
    """The number of axes of a node's result; -1 for what is no tensor."""
    val = _val(node)
    return val.dim() if isinstance(val, torch.Tensor) else -1


def is_same_shape(one: Any, other: Any) -> bool:
    """Whether two results have surely the same sizes; symbols are compared by name."""
    a = shape_of(one)
    b = shape_of(other)
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b, strict=True))


def _val(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None
