"""Floats of proof inputs: of both signs and mostly near zero, or over the recipe's range."""

import math

import numpy as np

from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import InputRecipe

# Along each axis of an image: few enough to be left after pooling.
_PATCHES = 3


def draw_floats(
    shape: tuple[int, ...], recipe: InputRecipe, generator: np.random.Generator, scale: float
) -> Array:
    """Of both signs and mostly near zero; evenly spread over the recipe's range if it has one.

    Args:
        shape: of the input.
        recipe: its range.
        generator: that of this input.
        scale: by how many times larger than usual what has no range is; 0 gives zeros, also where
            a range holds them.
    """
    if not scale and takes_zero(recipe):
        return np.zeros(shape)
    normal = _uneven_normal(shape, generator)
    if not recipe.has_range:
        # Of no dimensions the product is a number of numpy's, which no library takes.
        return np.asarray(normal * scale)
    low, high = _range(recipe)
    # Within 0.01 of the normal distribution's own function.
    even = 1 / (1 + np.exp(-1.702 * normal))
    return np.asarray(low + (high - low) * even)


def takes_zero(recipe: InputRecipe) -> bool:
    """Whether 0 is a value like others: silence, a black image."""
    low, high = _range(recipe)
    return not recipe.has_range or low <= 0 <= high


def _range(recipe: InputRecipe) -> tuple[float, float]:
    return recipe.low, recipe.low + 1.0 if recipe.high is None else recipe.high


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
