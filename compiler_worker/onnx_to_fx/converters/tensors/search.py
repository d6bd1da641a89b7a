"""Ops whose output size is data: how many boxes, unique elements or non-zeros there are.

Legend: N = slices along an axis, U = unique ones.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import UNSIGNED_VALUES, WIDE_UNSIGNED
from compiler_worker.onnx_to_fx.kernels.suppression import non_max_suppression
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor, unknown


@converter("NonMaxSuppression", versions=(10, 11))
def convert_non_max_suppression(op: Op) -> Tensor:
    """Indices [selected, 3] of batch, class and box."""
    boxes = op.tensor(0)
    scores = op.tensor(1)
    # Without a limit nothing is selected.
    limit, iou = (_scalar(op, index) if op.has(index) else 0 for index in (2, 3))
    node = op.call(
        non_max_suppression,
        boxes,
        scores,
        limit,
        iou,
        _scalar(op, 4) if op.has(4) else None,
        bool(op.attr_int("center_point_box")),
    )
    return Tensor(node, torch.int64, (None, 3))


def _scalar(op: Op, index: int) -> Any:
    """Return a number where it is known, else a tensor of one element."""
    number = op.number(index)
    return op.tensor(index) if number is None else number


@converter("Unique", versions=(11, 28), carried=UNSIGNED_VALUES)
def convert_unique(op: Op) -> list[Tensor]:
    """Unique elements or slices, their first places, where each input went, and counts."""
    x = op.tensor(0)
    given = op.maybe_int("axis")
    axis = None if given is None else op.axis(given, x.rank)
    node = op.call(unique, x, axis, bool(op.attr_int("sorted")))
    values, first, inverse, counts = (op.call(operator.getitem, node, k) for k in range(4))
    dims = (None,) if axis is None else (*x.dims[:axis], None, *x.dims[axis + 1 :])
    places = (None,) if axis is None else (x.dims[axis],)
    return [
        Tensor(values, x.dtype, dims),
        Tensor(first, torch.int64, unknown(1)),
        Tensor(inverse, torch.int64, places),
        Tensor(counts, torch.int64, unknown(1)),
    ]


@converter("NonZero", versions=(9, 13), carried=WIDE_UNSIGNED)
def non_zero(op: Op) -> Tensor:
    """Places of elements other than zero [rank, found], row by row."""
    x = op.tensor(0)
    found = op.call(torch.transpose, op.call(torch.nonzero, x), 0, 1)
    return Tensor(found, torch.int64, (x.rank, None))


def unique(x: torch.Tensor, axis: int | None, is_sorted: bool) -> tuple[torch.Tensor, ...]:
    """Return unique slices along an axis (elements of the flattened input without one).

    Args:
        x: of any shape, N long at the axis.
        axis: where slices lie side by side.
        is_sorted: whether they ascend; else they stand by their first places.

    Returns:
        The slices (x's shape with U for N), and as int64 the first place of each [U], the slice at
        each place [N], and their counts [U].
    """
    flat = x.reshape(-1) if axis is None else x
    dim = axis or 0
    _, inverse, counts = torch.unique(
        flat, return_inverse=True, return_counts=True, dim=None if axis is None else dim
    )
    places = torch.arange(flat.shape[dim], device=x.device)
    first = torch.full_like(counts, flat.shape[dim]).scatter_reduce(0, inverse, places, "amin")
    if not is_sorted:
        order = torch.sort(first)[1]
        first = first[order]
        counts = counts[order]
        inverse = torch.sort(order)[1][inverse]
    # Not torch's own slices: those of one axis have other strides than torch.compile is given.
    return flat.index_select(dim, first), first, inverse, counts
