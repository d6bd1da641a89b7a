"""Places on an affine map of an image; torch's own fixes the sizes when exported."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def affine_grid(theta: torch.Tensor, sizes: Sequence[int], align_corners: bool) -> torch.Tensor:
    """Return where each element of an image of the given sizes is mapped to.

    Args:
        theta: maps [N, axes, axes + 1].
        sizes: spatial sizes, outermost first.
        align_corners: whether -1 and 1 are the centres of the corner elements; else they
            are the outer edges.

    Returns:
        [N, *sizes, axes]; coordinates are innermost first, from -1 to 1.
    """
    axes = len(sizes)
    # The last column moves all of the image alike.
    total = theta[:, :, axes].reshape([-1, *(1,) * axes, axes])
    for axis, size in enumerate(sizes):
        step = torch.arange(size, dtype=theta.dtype, device=theta.device) * 2
        place = step / (size - 1) - 1 if align_corners else (step + 1) / size - 1
        column = place.reshape([1, *(-1 if a == axis else 1 for a in range(axes)), 1])
        factor = theta[:, :, axes - 1 - axis].reshape([-1, *(1,) * axes, axes])
        total = total + column * factor
    return total
