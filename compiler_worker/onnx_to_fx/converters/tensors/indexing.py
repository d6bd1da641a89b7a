"""Slices, gathers and scatters."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_max, sym_min
from compiler_worker.onnx_to_fx.values import Constant, HostValue, Tensor, unknown


@dataclass(frozen=True, slots=True)
class _Cut:
    """One axis of a Slice; step is static, start and end may be symbolic."""

    axis: int
    start: HostInt
    end: HostInt
    step: int


def _cuts(op: Op, rank: int) -> list[_Cut]:
    if op.version < 10:
        starts: list[HostInt] = list(op.maybe_ints("starts") or [])
        ends: list[HostInt] = list(op.maybe_ints("ends") or [])
        axes = op.maybe_ints("axes") or list(range(len(starts)))
        steps = [1] * len(starts)
    else:
        starts = op.ints(1)
        ends = op.ints(2)
        axes = op.static_ints(3) if op.has(3) else list(range(len(starts)))
        steps = op.static_ints(4) if op.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise op.refuse("starts, ends, axes and steps differ in length, or a step is 0")
    return [
        _Cut(op.axis(axis, rank), _within_reach(start), _within_reach(end), step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    ]


# "To the end" is written as any huge number in ONNX; no axis is as long as this one.
_HUGE = 2**31 - 1


def _within_reach(bound: HostInt) -> HostInt:
    return bound if isinstance(bound, Sym) else min(max(bound, -_HUGE), _HUGE)


def _slice_on_host(op: Op) -> HostValue | None:
    data = op.host(0)
    for cut in _cuts(op, data.ndim):
        places = _places(cut, data.shape[cut.axis])
        if places is None:
            return None
        data = np.take(data, np.arange(places.start, places.stop, places.step), axis=cut.axis)
    return HostValue(data, op.value(0).dtype)


def _places(cut: _Cut, size: HostInt | None) -> range | None:
    """Return the positions that a cut takes, None where that is dynamic.

    ONNX counts negative bounds from the back once, then clamps them: into [0, size], or for
    a negative step into [0, size - 1] and [-1, size - 1].
    """
    start = cut.start
    end = cut.end
    if not isinstance(size, int) or isinstance(start, Sym) or isinstance(end, Sym):
        return None
    start, end = (place + size if place < 0 else place for place in (start, end))
    if cut.step < 0:
        return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), cut.step)
    return range(min(max(start, 0), size), min(max(end, 0), size), cut.step)


@converter("Slice", versions=(1, 10, 11, 13), host=_slice_on_host, carried=CARRIED)
def slice_(op: Op) -> Tensor:
    """Take [start, end) by step along some axes; negative steps run backwards."""
    x = op.tensor(0)
    cuts = {cut.axis: cut for cut in _cuts(op, x.rank)}
    forward = {a: cut if cut.step > 0 else _mirrored(op, x, cut) for a, cut in cuts.items()}
    flipped = [axis for axis, cut in cuts.items() if cut.step < 0]
    source = op.call(torch.flip, x, flipped) if flipped else x.node
    index = tuple(
        _python_slice(forward[axis]) if axis in forward else slice(None) for axis in range(x.rank)
    )
    dims = tuple(
        _cut_size(cuts[axis], size) if axis in cuts else size for axis, size in enumerate(x.dims)
    )
    return Tensor(op.call(operator.getitem, source, index), x.dtype, dims)


def _mirrored(op: Op, x: Tensor, cut: _Cut) -> _Cut:
    """Return the cut with a positive step that takes the same elements of the flipped axis."""
    size = op.graph.dim(x, cut.axis)
    start, end = (_from_back(size, place) for place in (cut.start, cut.end))
    # A start before the first element is the first one, which flipping made the last.
    start = sym_min(start, size - 1) if start != 0 else 0
    return _Cut(cut.axis, start, end, -cut.step)


def _from_back(size: HostInt, place: HostInt) -> HostInt:
    """Return how far before the last element a place is, 0 where it is behind that."""
    if isinstance(place, Sym) and not place.is_size:
        return place.apply(_from_back_in_call, size, place, is_size=True)
    if isinstance(place, Sym) or 0 <= place < _HUGE:
        return sym_max(size - 1 - place, 0)
    return max(-1 - place, 0)


def _from_back_in_call(size: int, place: int) -> int:
    """The same for a dynamic number, whose sign may follow from the range of an export."""
    from_front = place + size if place < 0 else place
    found: int = torch.sym_max(size - 1 - from_front, 0)  # type: ignore[no-untyped-call]
    return found


def _python_slice(cut: _Cut) -> slice:
    # What reaches to the end stays out of the graph.
    start, end = (bound.node if isinstance(bound, Sym) else bound for bound in (cut.start, cut.end))
    return slice(start, None if end == _HUGE else end, None if cut.step == 1 else cut.step)


def _cut_size(cut: _Cut, size: HostInt | None) -> int | None:
    places = _places(cut, size)
    return None if places is None else len(places)


def _gather_on_host(op: Op) -> HostValue | None:
    data = op.host(0)
    axis = op.axis(op.attr_int("axis"), data.ndim)
    picks = op.host(1)
    if any(isinstance(item, Sym) for item in picks.reshape(-1)):
        return None
    taken = np.take(data, picks.astype(np.int64), axis=axis)
    return HostValue(np.asarray(taken, dtype=object), op.value(0).dtype)


@converter("Gather", versions=(1, 11, 13), host=_gather_on_host, carried=CARRIED)
def gather(op: Op) -> Tensor:
    """Pick whole slices along one axis."""
    x = op.tensor(0)
    axis = op.axis(op.attr_int("axis"), x.rank)
    number = op.number(1)
    # A number takes the axis away, a tensor of one element keeps it.
    if number is not None and not op.value(1).dims:
        return x.resized(op.call(torch.select, x, axis, number), axis)
    index = op.tensor(1)
    whole = (slice(None),) * axis
    # Negative indices count from the back here as in ONNX; torch.gather does not take them.
    picked = _index_node(op, index)
    return x.resized(op.call(operator.getitem, x, (*whole, picked)), axis, *index.dims)


def _index_node(op: Op, index: Tensor) -> torch.fx.Node:
    return index.node if index.dtype == torch.int64 else op.method("to", index, torch.int64)


@converter("GatherElements", versions=(11, 13), carried=CARRIED)
def gather_elements(op: Op) -> Tensor:
    """Pick single elements along one axis."""
    x = op.tensor(0)
    index = op.tensor(1)
    axis = op.axis(op.attr_int("axis"), x.rank)
    node = op.call(torch.gather, x, axis, _from_front(op, x, axis, index))
    return Tensor(node, x.dtype, index.dims)


def _from_front(op: Op, x: Tensor, axis: int, index: Tensor) -> torch.fx.Node:
    """Return indices with negative ones counted from the back, as torch.gather needs them."""
    picked = _index_node(op, index)
    given = op.value(1)
    if isinstance(given, Constant) and (given.array.size == 0 or np.min(given.array) >= 0):
        return picked
    shifted = op.call(operator.add, picked, op.graph.dim(x, axis))
    return op.call(torch.where, op.call(operator.lt, picked, 0), shifted, picked)


@converter("GatherND", versions=(11, 12, 13), carried=CARRIED)
def gather_nd(op: Op) -> Tensor:
    """Pick slices addressed by the last axis of the indices.

    Raises UnsupportedGraphError where that axis is dynamic.
    """
    x = op.tensor(0)
    index = op.tensor(1)
    batch = op.attr_int("batch_dims") if op.version >= 12 else 0
    depth = index.static[-1]
    if depth is None:
        raise op.refuse("the last axis of the indices must have a static size")
    leading = [_batch_index(op, x, axis, index.rank - 1) for axis in range(batch)]
    picks = (*leading, *_columns(op, index, depth))
    dims = (*index.dims[:-1], *x.dims[batch + depth :])
    return Tensor(op.call(operator.getitem, x, picks), x.dtype, dims)


def _columns(op: Op, index: Tensor, depth: int) -> list[torch.fx.Node]:
    picked = _index_node(op, index)
    if index.static[-1] is None:
        # A reshape, which fails where the last axis has another size.
        picked = op.call(torch.unflatten, picked, -1, [depth])
    return [op.call(torch.select, picked, -1, column) for column in range(depth)]


def _batch_index(op: Op, x: Tensor, axis: int, rank: int) -> torch.fx.Node:
    graph = op.graph
    steps = op.call(torch.arange, graph.dim(x, axis), device=graph.device())
    return op.call(torch.reshape, steps, [-1 if a == axis else 1 for a in range(rank)])


_REDUCTIONS = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _reduction(op: Op) -> str | None:
    if op.version < 16:
        return None
    return _REDUCTIONS[op.choice("reduction", _REDUCTIONS)]


@converter("ScatterElements", versions=(11, 13, 16, 18))
def scatter_elements(op: Op) -> Tensor:
    """Write single elements along one axis into a copy."""
    x = op.tensor(0)
    index = op.tensor(1)
    updates = op.tensor(2)
    axis = op.axis(op.attr_int("axis"), x.rank)
    picked = _from_front(op, x, axis, index)
    reduction = _reduction(op)
    if reduction is None:
        return x.like(op.call(torch.scatter, x, axis, picked, updates))
    # The element that was there takes part, in ONNX as by default in torch.
    return x.like(op.call(torch.scatter_reduce, x, axis, picked, updates, reduction))


# Its older name, without reductions.
converter("Scatter", versions=(9,))(scatter_elements)


@converter("ScatterND", versions=(11, 13, 16, 18))
def scatter_nd(op: Op) -> Tensor:
    """Write slices addressed by the last axis of the indices into a copy.

    Raises UnsupportedGraphError where the rank of the updates does not fit that axis.
    """
    x = op.tensor(0)
    index = op.tensor(1)
    updates = op.tensor(2)
    # What is written has the axes of the indices but their last, then those not addressed.
    depth = index.rank - 1 + x.rank - updates.rank
    if index.static[-1] not in (None, depth):
        raise op.refuse(f"updates of rank {updates.rank} do not go with the indices' last axis")
    columns = _columns(op, index, depth)
    reduction = _reduction(op)
    if reduction in (None, "sum"):
        accumulate = reduction == "sum"
        return x.like(op.call(torch.index_put, x, columns, updates, accumulate=accumulate))
    return x.like(_scatter_slices(op, x, columns, updates, str(reduction)))


def _scatter_slices(
    op: Op, x: Tensor, columns: list[torch.fx.Node], updates: Tensor, reduction: str
) -> torch.fx.Node:
    """Scatter with a product or extreme: slices become rows of one matrix [places, slice]."""
    depth = len(columns)
    sizes = op.dims(0)
    row: torch.fx.Node | None = None
    for axis, column in enumerate(columns):
        position = op.call(torch.remainder, column, sizes[axis])
        row = (
            position
            if row is None
            else op.call(operator.add, op.call(operator.mul, row, sizes[axis]), position)
        )
    flat = op.call(torch.flatten, x, 0, depth - 1)
    source = op.call(torch.reshape, updates, [-1, *sizes[depth:]])
    rows = op.call(torch.reshape, row, [-1] + [1] * (x.rank - depth))
    places = op.method("expand_as", rows, source)
    node = op.call(torch.scatter_reduce, flat, 0, places, source, reduction)
    return op.call(torch.reshape, node, sizes)


@converter("TensorScatter", versions=(24,), carried=CARRIED)
def tensor_scatter(op: Op) -> Tensor:
    """Write new steps of a cache from each entry's own position on, into a copy.

    Raises UnsupportedGraphError for another mode than `linear` and `circular`.
    """
    past = op.tensor(0)
    update = op.tensor(1)
    axis = op.axis(op.attr_int("axis"), past.rank)
    length = op.graph.dim(update, axis)
    steps = op.call(torch.arange, length, device=op.graph.device())
    place = op.call(torch.reshape, steps, [-1 if a == axis else 1 for a in range(past.rank)])
    if op.has(2):
        start = op.call(torch.reshape, op.tensor(2), [-1] + [1] * (past.rank - 1))
        place = op.call(operator.add, place, start)
    if op.choice("mode", ("circular", "linear")) == "circular":
        place = op.call(torch.remainder, place, op.graph.dim(past, axis))
    index = op.method("expand", place, op.dims(1))
    return past.like(op.call(torch.scatter, past, axis, index, update))


@converter("Compress", versions=(9, 11, 28), carried=CARRIED)
def compress(op: Op) -> Tensor:
    """Keep the slices whose condition, a constant, is true."""
    x = op.tensor(0)
    keep = [position for position, kept in enumerate(op.static_ints(1)) if kept]
    index = op.graph.tensor(HostValue(np.asarray(keep, dtype=object), torch.int64))
    axis = op.maybe_int("axis")
    if axis is None:
        flat = op.call(torch.reshape, x, [-1])
        return Tensor(op.call(torch.index_select, flat, 0, index), x.dtype, unknown(1))
    axis = op.axis(axis, x.rank)
    return x.resized(op.call(torch.index_select, x, axis, index), axis, len(keep))
