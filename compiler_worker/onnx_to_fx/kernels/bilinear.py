"""Elements of an image between its pixels.

Legend: N = images, C = channels, H, W = height and width, P = places of one image.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

# Per neighbour: row [N, P], column [N, P] (both inside of the image), weight [N, P].
Corners: TypeAlias = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def corners_with_zeros(y: torch.Tensor, x: torch.Tensor, height: int, width: int) -> Corners:
    """Return the four neighbours of each place; those outside of the image weigh nothing.

    Args:
        y: places in pixels, [N, P].
        x: the same along the width.
        height: H.
        width: W.

    Returns:
        Row, column and weight of each neighbour, all [N, P].
    """
    top = y.floor()
    left = x.floor()
    down = y - top
    right = x - left
    corners = []
    for row, row_weight in ((top, 1 - down), (top + 1, down)):
        for column, column_weight in ((left, 1 - right), (left + 1, right)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            # Clamped below: what is outside reads some pixel, and must not weigh it.
            weight = torch.where(inside, row_weight * column_weight, 0.0)
            corners.append((_index(row, height), _index(column, width), weight))
    return corners


def corners_at_edges(y: torch.Tensor, x: torch.Tensor, height: int, width: int) -> Corners:
    """As `corners_with_zeros`, with places up to one pixel outside moved to the edge.

    Args:
        y: places in pixels, [N, P].
        x: the same along the width.
        height: H.
        width: W.
    """
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    top, bottom, down = _edge(y, height)
    left, right, across = _edge(x, width)
    corners = []
    for row, row_weight in ((top, 1 - down), (bottom, down)):
        for column, column_weight in ((left, 1 - across), (right, across)):
            weight = torch.where(inside, row_weight * column_weight, 0.0)
            corners.append((_index(row, height), _index(column, width), weight))
    return corners


def _edge(place: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low = place.clamp(min=0).floor().clamp(max=size - 1)
    fraction = torch.where(low >= size - 1, 0.0, place.clamp(min=0) - low)
    return low, low + 1, fraction


def _index(place: torch.Tensor, size: int) -> torch.Tensor:
    return place.clamp(0, size - 1).to(torch.int64)


def pixels(image_NCHW: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return the pixels at given places, [N, C, P].

    Args:
        image_NCHW: of any type.
        row: int64 [N, P], inside of the image.
        column: int64 [N, P].
    """
    flat_NCL = image_NCHW.flatten(2)
    index_N1P = (row * image_NCHW.shape[3] + column).unsqueeze(1)
    return flat_NCL.gather(2, index_N1P.expand(-1, flat_NCL.shape[1], -1))
