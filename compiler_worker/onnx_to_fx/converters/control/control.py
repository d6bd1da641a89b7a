"""If: the branch itself where the condition is the same in every call, else torch's cond."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch

from compiler_worker.onnx_to_fx.control_flow.nested import NestedBuilder
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED, element_type_name
from compiler_worker.onnx_to_fx.kernels.loop_steps import own_copy
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, known_equal
from compiler_worker.onnx_to_fx.values import (
    AnyValue,
    Dims,
    OptionalValue,
    SequenceValue,
    Tensor,
    Value,
)

_BRANCHES = ("then_branch", "else_branch")


@converter("If", versions=(1, 11, 13, 16, 19, 21, 23, 24, 25), carried=CARRIED)
def choose(op: Op) -> list[AnyValue]:
    """One of two graphs."""
    condition = op.known(op.any_value(0))
    if condition is not None:
        return op.subgraph(_BRANCHES[0 if condition else 1]).inline([])
    return _in_the_call(op)


def _in_the_call(op: Op) -> list[AnyValue]:
    builders = [NestedBuilder(op.graph) for _ in _BRANCHES]
    results = [
        op.subgraph(name).inline([], graph) for name, graph in zip(_BRANCHES, builders, strict=True)
    ]
    forms = [", ".join(map(form, values)) for values in results]
    if forms[0] != forms[1]:
        raise op.refuse(
            f"its branches give {forms[0]} and {forms[1]}, and only the call knows which one runs"
        )
    tensors = [
        [graph.tensor(item) for value in values for item in packed(value)]
        for graph, values in zip(builders, results, strict=True)
    ]
    merged = [_merged(op, builders, pair) for pair in zip(*tensors, strict=True)]
    given = _given(op, _emitted(op, builders, tensors), merged)
    return [unpacked(value, given) for value in results[0]]


def _merged(
    op: Op, builders: Sequence[NestedBuilder], pair: tuple[Tensor, ...]
) -> tuple[torch.dtype, Dims]:
    """Return what both branches say of an output."""
    then, other = pair
    if (then.dtype, then.rank) != (other.dtype, other.rank):
        shown = [f"{element_type_name(x.dtype)} of rank {x.rank}" for x in pair]
        raise op.refuse(
            f"its branches give {shown[0]} and {shown[1]}, and only the call knows which one runs"
        )
    dims = [graph.outer_dims(x) for graph, x in zip(builders, pair, strict=True)]
    return then.dtype, tuple(map(_common, *dims))


def _common(one: HostInt | None, other: HostInt | None) -> HostInt | None:
    is_same = one is not None and other is not None and known_equal(one, other)
    return one if is_same else None


def _emitted(
    op: Op, builders: Sequence[NestedBuilder], tensors: Sequence[Sequence[Tensor]]
) -> torch.fx.Node:
    # torch's cond refuses a branch that gives an input, or one value twice.
    copies = [
        [graph.call(own_copy, x) for x in outputs]
        for graph, outputs in zip(builders, tensors, strict=True)
    ]
    # Both graphs take the same arguments.
    used = list(dict.fromkeys(node for graph in builders for node in graph.lifted()))
    modules = []
    for name, graph, outputs in zip(_BRANCHES, builders, copies, strict=True):
        graph.take(used)
        modules.append(op.graph.add_module(name, graph.module(outputs)))
    condition = op.method("reshape", op.tensor(0), ())
    return op.call(torch.ops.higher_order.cond, condition, *modules, used)


def _given(
    op: Op, node: torch.fx.Node, merged: Sequence[tuple[torch.dtype, Dims]]
) -> Iterator[Tensor]:
    for position, (dtype, dims) in enumerate(merged):
        yield Tensor(op.call(operator.getitem, node, position), dtype, dims)


def packed(value: AnyValue) -> list[Value]:
    """Return the tensors in a value, in order."""
    match value:
        case SequenceValue(items):
            return list(items)
        case OptionalValue(item):
            return [] if item is None else packed(item)
        case _:
            return [value]


def unpacked(like: AnyValue, tensors: Iterator[Tensor]) -> AnyValue:
    """Return a value of the form of `like`, of the next tensors."""
    match like:
        case SequenceValue(items):
            return SequenceValue(tuple(next(tensors) for _ in items))
        case OptionalValue(item):
            inner = None if item is None else unpacked(item, tensors)
            return inner if isinstance(inner, OptionalValue) else OptionalValue(inner)
        case _:
            return next(tensors)


def form(value: AnyValue) -> str:
    """Return what a value is, for comparisons and messages."""
    match value:
        case SequenceValue(items):
            return f"a sequence of {len(items)}"
        case OptionalValue(item):
            return "an empty optional" if item is None else f"an optional of {form(item)}"
        case _:
            return "a tensor"
