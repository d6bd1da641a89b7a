"""Unique elements or slices, with ONNX's order and first places.

Legend: N = slices along the axis, U = unique ones.
"""

from __future__ import annotations

import torch


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
