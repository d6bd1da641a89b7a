"""Masks of proof inputs: rows of different length, with pads on either side and holes."""

from typing import Literal

import numpy as np

from services.contracts.kserve.tensors import Array

# So many rows are padded on either side in one draw.
MANY_ROWS = 4


def draw_mask(
    shape: tuple[int, ...],
    generator: np.random.Generator,
    *,
    has_pads_first: bool,
    padding_side: Literal["right"] | None = None,
) -> Array:
    """Valid positions first; of several rows one has just one and one has all.

    Of many every second one has its pads first, and every fourth has holes: without some words,
    or with several parts and pads between.

    Args:
        shape: of the mask; its last axis is that of the positions.
        generator: what lengths are drawn from.
        has_pads_first: every row has its valid positions last, and no holes.
        padding_side: `right`: every row has its valid positions first, whatever else is said.

    Returns:
        True where a position is valid; ones where the mask has no position.
    """
    length = shape[-1] if shape else 0
    if not length:
        return np.ones(shape)
    lengths = generator.integers(1, length + 1, size=shape[:-1])
    if lengths.size > 1:
        lengths.flat[0] = 1
        lengths.flat[1] = length
    mask: Array = np.arange(length) < lengths[..., np.newaxis]
    if padding_side == "right":
        return mask
    if has_pads_first:
        return mask[..., ::-1]
    places = np.arange(lengths.size).reshape(lengths.shape)
    is_turned = (lengths.size >= MANY_ROWS) & (places % 2 == 1)
    mask = np.where(is_turned[..., np.newaxis], mask[..., ::-1], mask)
    # What counts valid positions, or takes all between the first and the last, shows there.
    has_holes = ((lengths.size >= MANY_ROWS) & (places % MANY_ROWS == 2))[..., np.newaxis]
    holed: Array = mask & (~has_holes | (np.arange(length) % 3 != 1))
    return holed
