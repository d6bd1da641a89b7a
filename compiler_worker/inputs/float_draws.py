"""Floats of proof inputs: of both signs and mostly near zero, or over a range that is known.

Legend: [*shape] = an input of any rank; P = places of its last axis.
"""

import math

import numpy as np

from services.contracts.kserve.tensors import Array
from services.contracts.model.input_values import InputValues, Ranges, by_place
from services.contracts.model.recipe import InputRecipe

# Along each axis of an image: few enough to be left after pooling.
_PATCHES = 3


def float_ranges(recipe: InputRecipe, known: InputValues) -> Ranges:
    """What floats are drawn over: the recipe's range, else the graph's; none around zero.

    Args:
        recipe: of the input.
        known: what the graph shows of it.
    """
    if not recipe.has_range:
        return known.ranges_beside(recipe)
    return ((recipe.low, recipe.low + 1.0 if recipe.high is None else recipe.high),)


def draw_floats(
    shape: tuple[int, ...],
    recipe: InputRecipe,
    known: InputValues,
    generator: np.random.Generator,
    scale: float,
) -> Array:
    """Of both signs and mostly near zero; where there is a range evenly spread over its parts.

    Args:
        shape: of the input.
        recipe: of the input; nothing is drawn beyond its range.
        known: what the graph shows of it, where the recipe has no range.
        generator: that of this input.
        scale: by how many times larger than usual; 0 gives zeros, where the recipe's range, if
            there is one, holds them.

    Returns:
        float64 [*shape].
    """
    normal = _uneven_normal(shape, generator)
    ranges = float_ranges(recipe, known)
    if scale == 0 and takes_zero(recipe):
        return np.zeros(shape)
    # Of no dimensions the product is a number of numpy's, which no library takes.
    drawn = np.asarray(normal * scale)
    put_ranges(drawn, ranges, normal, 1.0 if recipe.has_range else scale)
    return drawn


def put_ranges(drawn: Array, ranges: Ranges, normal: Array, scale: float = 1.0) -> None:
    """Replace what was drawn by values of ranges, in each of whose parts as many lie.

    So each threshold of a tree is crossed, also the least of many that lie far apart.

    Args:
        drawn: of the input, floats or integers [*shape]; changed in place.
        ranges: one for all places, or P, one for each place of the last axis; where one is empty,
            what was drawn stays.
        normal: normally distributed values, float64 [*shape].
        scale: by how many times farther than usual from the middle of a range.
    """
    for place, ends in by_place(ranges):
        # Within 0.01 of the normal distribution's own function.
        even = 1 / (1 + np.exp(-1.702 * normal[..., place]))
        middle = (ends[0] + ends[-1]) / 2
        usual = np.interp(even, np.linspace(0, 1, len(ends)), ends)
        values = middle + (usual - middle) * scale
        drawn[..., place] = np.rint(values) if drawn.dtype.kind in "iu" else values


def takes_zero(recipe: InputRecipe) -> bool:
    """Whether 0 is a value like others: silence, a black image."""
    if not recipe.has_range:
        return True
    return recipe.low <= 0 and (recipe.high is None or recipe.high >= 0)


def _uneven_normal(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Normally distributed values; images are as bright as they like, and in patches.

    Pure noise has the same mean everywhere, so that a model that pools over an image answers the
    same to each: its engine could not be judged.
    """
    fine = generator.standard_normal(shape)
    # [rows, features] has no places between which something could vary.
    if len(shape) < 3 or not fine.size:
        return fine
    patches = generator.standard_normal([*shape[:2], *(min(n, _PATCHES) for n in shape[2:])])
    for axis, size in enumerate(shape[2:], start=2):
        patches = patches.take(np.arange(size) * patches.shape[axis] // size, axis)
    levels = generator.standard_normal([*shape[:2], *(1 for _ in shape[2:])])
    # Three parts of spread 1 each.
    uneven: Array = (fine + patches + levels) / math.sqrt(3)
    return uneven
