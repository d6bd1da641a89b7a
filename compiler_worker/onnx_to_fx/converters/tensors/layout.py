"""Ops that move elements without computing: transpose, join, cut, pad."""

import operator
from functools import reduce

import numpy as np
import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, ceil_div, sym_max
from compiler_worker.onnx_to_fx.values import HostValue, Tensor, unknown


@converter("Transpose", versions=(1, 13, 21, 23, 24, 25), carried=CARRIED)
def transpose(op: Op) -> Tensor:
    """Permute axes; reversed without `perm`.

    Raises UnsupportedGraphError for a `perm` that is no permutation.
    """
    x = op.tensor(0)
    order = op.maybe_ints("perm") or list(reversed(range(x.rank)))
    if sorted(order) != list(range(x.rank)):
        raise op.refuse(f"perm {order} does not permute {x.rank} axes")
    dims = tuple(x.dims[axis] for axis in order)
    return Tensor(op.call(torch.permute, x, order), x.dtype, dims)


def _concat_on_host(op: Op) -> HostValue:
    arrays = [op.host(index) for index in range(len(op.inputs))]
    axis = op.axis(op.attr_int("axis"), arrays[0].ndim)
    return HostValue(np.concatenate(arrays, axis=axis), op.value(0).dtype)


@converter("Concat", versions=(4, 11, 13), host=_concat_on_host, carried=CARRIED)
def concat(op: Op) -> Tensor:
    """Join along one axis."""
    parts = op.tensors()
    axis = op.axis(op.attr_int("axis"), parts[0].rank)
    total: HostInt = sum(op.graph.dim(part, axis) for part in parts)
    return parts[0].resized(op.call(torch.cat, parts, dim=axis), axis, total)


@converter("Split", versions=(2, 11, 13, 18), carried=CARRIED)
def split(op: Op) -> list[Tensor]:
    """Cut along one axis, into given sizes or into equal parts (the last may be shorter)."""
    x = op.tensor(0)
    axis = op.axis(op.attr_int("axis"), x.rank)
    sizes = _split_sizes(op, op.graph.dim(x, axis))
    node = op.call(torch.split, x, sizes, dim=axis)
    parts = (op.call(operator.getitem, node, index) for index in range(len(sizes)))
    return [x.resized(part, axis, size) for part, size in zip(parts, sizes, strict=True)]


def _split_sizes(op: Op, length: HostInt) -> list[HostInt]:
    if op.has(1):
        return op.ints(1)
    given = op.maybe_ints("split")
    if given is not None:
        return list(given)
    count = len(op.proto.output)
    if op.version >= 18 and op.attr_int("num_outputs") != count:
        raise op.refuse(f"num_outputs is {op.attr_int('num_outputs')} with {count} outputs")
    part = ceil_div(length, count)
    return [part] * (count - 1) + [length - part * (count - 1)]


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


@converter("Pad", versions=(2, 11, 13, 18, 19, 21, 23, 24, 25))
def pad(op: Op) -> Tensor:
    """Grow (or, with negative pads, shrink) axes; raises UnsupportedGraphError for other modes."""
    x = op.tensor(0)
    begins, ends = _pads(op, x.rank)
    mode = op.choice("mode", _PAD_MODES)
    if mode == "constant":
        return emit_constant_pad(op, x, begins, ends, _pad_value(op))
    moved = [a for a in range(x.rank) if not (_is_zero(begins[a]) and _is_zero(ends[a]))]
    return reduce(lambda y, a: _pad_axis(op, y, a, (begins[a], ends[a]), mode), moved, x)


def _pads(op: Op, rank: int) -> tuple[list[HostInt], list[HostInt]]:
    pads: list[HostInt] = list(op.maybe_ints("pads") or []) if op.version < 11 else op.ints(1)
    axes = list(range(rank))
    if op.has(3):
        axes = [op.axis(axis, rank) for axis in op.static_ints(3)]
    if len(pads) != 2 * len(axes):
        raise op.refuse(f"{len(pads)} pads for {len(axes)} axes, wanted two per axis")
    begins: list[HostInt] = [0] * rank
    ends: list[HostInt] = [0] * rank
    for position, axis in enumerate(axes):
        begins[axis] = pads[position]
        ends[axis] = pads[position + len(axes)]
    return begins, ends


def _pad_value(op: Op) -> float:
    if op.version < 11:
        return op.attr_float("value")
    if not op.has(2):
        return 0
    number = op.number(2)
    if number is None or isinstance(number, Sym):
        raise op.refuse("the pad value must be constant")
    return float(number) if op.value(0).dtype.is_floating_point else number


def emit_constant_pad(
    op: Op, x: Tensor, begins: list[HostInt], ends: list[HostInt], value: float
) -> Tensor:
    """Emit padding with one value.

    Args:
        op: the node.
        x: of any rank.
        begins: elements before each axis of x; negative ones are cut off.
        ends: elements after each axis.
        value: of the new elements.
    """
    flat: list[HostInt] = []
    # torch counts pads from the last axis.
    for begin, end in zip(reversed(begins), reversed(ends), strict=True):
        flat += [begin, end]
    dims = tuple(
        size if _is_zero(begin) and _is_zero(end) else _sum(size, begin, end)
        for size, begin, end in zip(x.dims, begins, ends, strict=True)
    )
    return Tensor(op.call(functional.pad, x, flat, "constant", value), x.dtype, dims)


def _sum(size: HostInt | None, begin: HostInt, end: HostInt) -> HostInt | None:
    return None if size is None else size + begin + end


def _is_zero(size: HostInt) -> bool:
    return not isinstance(size, Sym) and size == 0


def _pad_axis(op: Op, x: Tensor, axis: int, pads: tuple[HostInt, HostInt], mode: str) -> Tensor:
    """Pad one axis by picking source positions; exact for any rank and element type."""
    size = op.graph.dim(x, axis)
    begin, end = pads
    if isinstance(begin, Sym) or isinstance(end, Sym):
        raise op.refuse(f"pads of mode '{mode}' must be constant")
    graph = op.graph
    position = graph.call(torch.arange, -begin, size + end, device=graph.device())
    last = size - 1
    if mode == "edge":
        index = op.call(torch.clamp, position, 0, last)
    elif mode == "wrap":
        index = op.call(torch.remainder, position, size)
    else:
        # Reflection folds the line at both ends with period 2 (size - 1).
        period = sym_max(last * 2, 1)
        folded = op.call(torch.remainder, position, period)
        index = op.call(torch.minimum, folded, op.call(operator.sub, period, folded))
        index = op.call(torch.clamp, index, 0, last)
    return x.resized(op.call(torch.index_select, x, axis, index), axis, None)


_BLOCK_ORDERS = ("DCR", "CRD")


def _blocks(op: Op) -> tuple[Tensor, list[HostInt], int]:
    x = op.tensor(0)
    sizes = op.dims(0)
    block = op.attr_int("blocksize")
    if x.rank != 4:
        raise op.refuse(f"input has rank {x.rank}, wanted 4")
    return x, sizes, block


@converter("DepthToSpace", versions=(1, 11, 13, 28), carried=CARRIED)
def depth_to_space(op: Op) -> Tensor:
    """Move blocks of channels into height and width.

    Raises UnsupportedGraphError for a mode other than DCR and CRD.
    """
    x, (n, c, h, w), b = _blocks(op)
    # Before version 11 there was one order: blocks are the outer part of the channels.
    mode = op.choice("mode", _BLOCK_ORDERS) if op.version >= 11 else "DCR"
    depth = c // (b * b)
    if mode == "DCR":
        split_nbbchw = op.call(torch.reshape, x, [n, b, b, depth, h, w])
        moved = op.call(torch.permute, split_nbbchw, [0, 3, 4, 1, 5, 2])
    else:
        split_ncbbhw = op.call(torch.reshape, x, [n, depth, b, b, h, w])
        moved = op.call(torch.permute, split_ncbbhw, [0, 1, 4, 2, 5, 3])
    return Tensor(op.call(torch.reshape, moved, [n, depth, h * b, w * b]), x.dtype, unknown(4))


@converter("SpaceToDepth", versions=(1, 13, 28), carried=CARRIED)
def space_to_depth(op: Op) -> Tensor:
    """Move blocks of height and width into channels.

    Raises UnsupportedGraphError for a mode other than DCR and CRD.
    """
    x, (n, c, h, w), b = _blocks(op)
    mode = op.choice("mode", _BLOCK_ORDERS) if op.version >= 28 else "DCR"
    split_nchbwb = op.call(torch.reshape, x, [n, c, h // b, b, w // b, b])
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = op.call(torch.permute, split_nchbwb, order)
    node = op.call(torch.reshape, moved, [n, c * (b * b), h // b, w // b])
    return Tensor(node, x.dtype, unknown(4))


@converter("ReverseSequence", versions=(10, 28), carried=CARRIED)
def reverse_sequence(op: Op) -> Tensor:
    """Reverse the first `lengths[b]` steps of each batch entry."""
    x = op.tensor(0)
    lengths = op.tensor(1)
    batch = op.attr_int("batch_axis")
    time = op.attr_int("time_axis")
    steps = op.call(torch.arange, op.graph.dim(x, time), device=op.graph.device())
    steps_BT = op.call(torch.unsqueeze, steps, 0)
    lengths_B1 = op.call(torch.unsqueeze, lengths, 1)
    mirrored = op.call(operator.sub, op.call(operator.sub, lengths_B1, 1), steps_BT)
    inside = op.call(operator.lt, steps_BT, lengths_B1)
    index = op.call(torch.where, inside, mirrored, steps_BT)
    # ONNX allows axes 0 and 1 alone, in either order.
    if batch > time:
        index = op.call(torch.transpose, index, 0, 1)
    for axis in range(2, x.rank):
        index = op.call(torch.unsqueeze, index, axis)
    index = op.method("expand", index, op.dims(0))
    return x.like(op.call(torch.gather, x, time, index))
