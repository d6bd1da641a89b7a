"""Images put together again from their windows, at any rank, padding and dilation."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def col2im(
    columns: torch.Tensor,
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    dilations: Sequence[int],
) -> torch.Tensor:
    """Add up windows where they overlap: [N, C, *image].

    Args:
        columns: [N, C * elements, windows]; elements are those of one window.
        image: sizes of the result, one per spatial axis, as all that follow.
        kernel: sizes of a window.
        strides: between windows.
        begins: padding before each axis, cut off again.
        ends: padding after each axis.
        dilations: between elements of a window.
    """
    padded = [sum(sizes) for sizes in zip(image, begins, ends, strict=True)]
    place = torch.zeros([], dtype=torch.int64, device=columns.device)
    rank = len(kernel)
    elements = 1
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        windows = (padded[axis] - extent) // strides[axis] + 1
        element = torch.arange(kernel[axis], device=columns.device) * dilations[axis]
        start = torch.arange(windows, device=columns.device) * strides[axis]
        # Axes of the index: window elements first, then windows.
        element = element.reshape([-1 if a == axis else 1 for a in range(2 * rank)])
        start = start.reshape([-1 if a == rank + axis else 1 for a in range(2 * rank)])
        place = place * padded[axis] + element + start
        elements *= kernel[axis]
    parts = torch.unflatten(columns, 1, [-1, elements]).flatten(2)
    total = padded[0]
    for size in padded[1:]:
        total = total * size
    whole = parts.new_zeros([parts.shape[0], parts.shape[1], total])
    result = torch.unflatten(whole.index_add(2, place.reshape(-1), parts), 2, padded)
    for axis in range(rank):
        result = result.narrow(axis + 2, begins[axis], image[axis])
    return result
