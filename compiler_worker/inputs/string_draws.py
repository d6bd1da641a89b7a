"""Strings of proof inputs: of the recipe's words."""

import math
from collections.abc import Sequence

import numpy as np

from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensors import Array


def draw_strings(
    shape: tuple[int, ...], words: Sequence[str], generator: np.random.Generator
) -> Array:
    """Each word about as often as any other, so that a few elements meet the most of them.

    Args:
        shape: of the input.
        words: the recipe's, or those by default.
        generator: that of this input.
    """
    places = np.resize(generator.permutation(len(words)), math.prod(shape))
    strings: Array = np.array(words, dtype=STRING_DTYPE)[generator.permutation(places)]
    return strings.reshape(shape)
