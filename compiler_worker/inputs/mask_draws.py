"""Masks of proof inputs: rows of different length, with pads on either side and holes."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe
from services.engines.shapes import shape_at

# So many rows are padded on either side in one draw.
MANY_ROWS = 4


def draw_mask(
    shape: tuple[int, ...],
    generator: np.random.Generator,
    padding_side: Literal["right", "either"] | None = None,
    *,
    has_pads_first: bool,
) -> Array:
    """Valid positions first; of several rows one has just one and one has all.

    Of many every second one has its pads first, and every fourth has holes: without some words,
    or with several parts and pads between.

    Args:
        shape: of the mask; its last axis is that of the positions.
        generator: what lengths are drawn from.
        padding_side: `right`: every row has its valid positions first, also with
            `has_pads_first`.
        has_pads_first: every row has its valid positions last, and no holes.

    Returns:
        bool [*shape], True where a position is valid; float64 ones where the mask has no position.
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


def mask_shapes(
    master: MasterRecord, recipe: Recipe, sizes: Mapping[str, int]
) -> list[tuple[int, ...]]:
    """Shapes of the masks; none where they have one position, and so nothing to mask out.

    Args:
        master: names the inputs and their shapes.
        recipe: says which are masks.
        sizes: one for each dynamic dimension.
    """
    shapes = [shape_at(spec, dict(sizes)) for spec in _masks(master, recipe)]
    return [] if all(shape[-1:] in ((), (0,), (1,)) for shape in shapes) else shapes


def right_padded(master: MasterRecord, recipe: Recipe) -> list[str]:
    """Names of the masks that have no pads before or between valid positions."""
    names = [spec.name for spec in _masks(master, recipe)]
    return [n for n in names if recipe.inputs.get(n, InputRecipe()).padding_side == "right"]


def may_be_left_padded(master: MasterRecord, recipe: Recipe) -> bool:
    """Whether some mask may have pads first."""
    return len(right_padded(master, recipe)) < len(_masks(master, recipe))


def _masks(master: MasterRecord, recipe: Recipe) -> list[TensorSpec]:
    return [s for s in master.inputs if drawn_role(master, recipe, s.name) is InputRole.MASK]
