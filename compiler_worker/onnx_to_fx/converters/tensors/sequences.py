"""Sequences: they exist at import only, as lists of values."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.control_flow.unrolled import MAX_UNROLLED_NODES, host_scalar
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import (
    AnyValue,
    HostValue,
    SequenceValue,
    Tensor,
    Value,
    broadcast_dims,
)


@converter("SequenceEmpty", versions=(11,))
def empty(_: Op) -> SequenceValue:
    """No element."""
    return SequenceValue(())


@converter("SequenceConstruct", versions=(11,), carried=CARRIED)
def construct(op: Op) -> SequenceValue:
    """The inputs as elements."""
    return SequenceValue(tuple(op.value(index) for index in range(len(op.inputs))))


@converter("SequenceLength", versions=(11,), carried=CARRIED)
def length(op: Op) -> HostValue:
    """Number of elements."""
    return host_scalar(len(op.sequence(0)))


@converter("SequenceAt", versions=(11,), carried=CARRIED)
def element(op: Op) -> Value:
    """One element."""
    items = op.sequence(0)
    return items[_position(op, 1, len(items))]


@converter("SequenceErase", versions=(11,), carried=CARRIED)
def erase(op: Op) -> SequenceValue:
    """All elements but one."""
    items = list(op.sequence(0))
    del items[_position(op, 1, len(items)) if op.has(1) else -1]
    return SequenceValue(tuple(items))


@converter("SequenceInsert", versions=(11,), carried=CARRIED)
def insert(op: Op) -> SequenceValue:
    """One element more."""
    items = list(op.sequence(0))
    # Behind the last one is a place too.
    items.insert(_position(op, 2, len(items) + 1) if op.has(2) else len(items), op.value(1))
    return SequenceValue(tuple(items))


def _position(op: Op, index: int, count: int) -> int:
    """Return a place in [0, count); negative ones count from the last element."""
    given = op.static_ints(index)
    last = count - 1 if op.proto.op_type == "SequenceInsert" else count
    place = given[0] if len(given) == 1 else None
    if place is None or not -last <= place < count:
        raise op.refuse(f"position {given} is outside of a sequence of {last}")
    return place if place >= 0 else place + last


@converter("SplitToSequence", versions=(11, 24), carried=CARRIED)
def split(op: Op) -> SequenceValue:
    """Parts along an axis; without sizes parts of one, without the axis unless keepdims."""
    x = op.tensor(0)
    axis = op.axis(op.attr_int("axis"), x.rank)
    sizes = _part_sizes(op, x, axis)
    parts = op.call(torch.split, x, sizes, axis)
    keeps = op.has(1) or bool(op.attr_int("keepdims"))
    return SequenceValue(
        tuple(_part(op, x, parts, k, size, axis, keeps) for k, size in enumerate(sizes))
    )


def _part(
    op: Op, x: Tensor, parts: torch.fx.Node, index: int, size: int, axis: int, keeps: bool
) -> Tensor:
    node = op.call(operator.getitem, parts, index)
    if keeps:
        return x.resized(node, axis, size)
    return x.resized(op.call(torch.squeeze, node, axis), axis)


def _part_sizes(op: Op, x: Tensor, axis: int) -> list[int]:
    if op.has(1) and len(op.value(1).dims) == 1:
        return op.static_ints(1)
    total = x.dims[axis]
    step = op.static_ints(1)[0] if op.has(1) else 1
    if not isinstance(total, int):
        raise op.refuse("the number of parts would depend on the call's sizes; give the sizes")
    # Each part is an op of the graph.
    if step < 1 or total > step * MAX_UNROLLED_NODES:
        raise op.refuse(f"parts of {step} of an axis of {total} are too many")
    return [min(step, total - start) for start in range(0, total, step)]


@converter("ConcatFromSequence", versions=(11,), carried=CARRIED)
def concat(op: Op) -> Tensor:
    """The elements along one axis, or along a new one.

    Raises UnsupportedGraphError for an empty sequence, and for elements of different rank.
    """
    tensors = [op.graph.tensor(item) for item in op.sequence(0)]
    if not tensors:
        raise op.refuse("a sequence without elements has nothing to concatenate")
    first = tensors[0]
    is_new = bool(op.attr_int("new_axis"))
    if any(x.rank != first.rank for x in tensors):
        raise op.refuse(f"elements have ranks {[x.rank for x in tensors]}, wanted one rank")
    axis = op.axis(op.attr_int("axis"), first.rank + is_new)
    common = broadcast_dims(*(x.dims for x in tensors))
    if is_new:
        dims = (*common[:axis], len(tensors), *common[axis:])
        return Tensor(op.call(torch.stack, tensors, axis), first.dtype, dims)
    sizes: list[HostInt] = [op.graph.dim(x, axis) for x in tensors]
    dims = (*common[:axis], sum(sizes[1:], start=sizes[0]), *common[axis + 1 :])
    return Tensor(op.call(torch.cat, tensors, axis), first.dtype, dims)


@converter("SequenceMap", versions=(17,), carried=CARRIED)
def mapped(op: Op) -> list[AnyValue]:
    """The body for every element; tensors beside sequences are the same for each."""
    body = op.subgraph("body")
    count = len(op.sequence(0))
    columns = [_column(op, index, count) for index in range(len(op.inputs))]
    rows = [body.inline(list(given)) for given in zip(*columns, strict=True)]
    results = [[row[k] for row in rows] for k in range(len(body.proto.output))]
    return [SequenceValue(tuple(map(op.as_tensor, column))) for column in results]


def _column(op: Op, index: int, count: int) -> Sequence[AnyValue]:
    value = op.any_value(index)
    if not isinstance(value, SequenceValue):
        return [value] * count
    if len(value.items) != count:
        raise op.refuse(f"sequences have {count} and {len(value.items)} elements")
    return value.items
