"""Strings and categories of proof inputs: of the recipe's words, or those that the graph knows."""

import math
from collections.abc import Sequence

import numpy as np

from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensors import Array
from services.contracts.model.input_values import Category, by_place


def draw_strings(
    shape: tuple[int, ...], words: Sequence[str], generator: np.random.Generator
) -> Array:
    """Each word about as often as any other, so that a few elements meet the most of them.

    Args:
        shape: of the input.
        words: the recipe's, or those by default.
        generator: that of this input.

    Returns:
        Strings [*shape].
    """
    places = np.resize(generator.permutation(len(words)), math.prod(shape))
    strings: Array = np.array(words, dtype=STRING_DTYPE)[generator.permutation(places)]
    return strings.reshape(shape)


def put_choices(
    drawn: Array, choices: Sequence[Sequence[Category]], generator: np.random.Generator
) -> None:
    """Replace what was drawn by categories, each about as often as any other.

    Args:
        drawn: of the input, [..., places]; changed in place.
        choices: one list for all places, or one for each place of the last axis; where a list is
            empty, what was drawn stays.
        generator: that of this input.
    """
    for place, known in by_place(choices):
        column = drawn[..., place]
        chosen = np.resize(generator.permutation(len(known)), column.size)
        # Strings and numbers are both objects on their way to the input's own type.
        words = np.array(known, dtype=object)[generator.permutation(chosen)]
        column[...] = words.reshape(column.shape)
