"""Items in a row, cut into stretches that cost least: exactly, by dynamic programming."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Sums of the same numbers in another order differ by less.
_SAME = 1 + 1e-9


class Stretch(NamedTuple):
    """Items that share an end, from the first to the last, and shapes that they are given."""

    first: int
    last: int
    num: int


class Cut(NamedTuple):
    """All items in stretches, and what these cost together."""

    cost: float
    stretches: tuple[Stretch, ...]


def best_cuts(costs_NIJ: NDArray[np.float64], num: int) -> list[Cut]:
    """The cheapest cut with exactly one shape, two and so on, where there is one.

    Args:
        costs_NIJ: of items I to J as one stretch with N + 1 shapes; inf where that cannot be.
        num: most shapes in all.
    """
    most, num_items, _ = costs_NIJ.shape
    # Of the first items, by shapes and items.
    least = np.full((num + 1, num_items + 1), np.inf)
    least[0, 0] = 0.0
    last: dict[tuple[int, int], Stretch] = {}
    for used, end, own in product(range(1, num + 1), range(1, num_items + 1), range(1, most + 1)):
        if own <= used:
            totals = least[used - own, :end] + costs_NIJ[own - 1, :end, end - 1]
            first = int(totals.argmin())
            if totals[first] < least[used, end]:
                least[used, end] = totals[first]
                last[used, end] = Stretch(first, end - 1, own)
    ends = [used for used in range(1, num + 1) if np.isfinite(least[used, num_items])]
    return [Cut(float(least[n, num_items]), _stretches(last, n, num_items)) for n in ends]


def _stretches(last: Mapping[tuple[int, int], Stretch], used: int, end: int) -> tuple[Stretch, ...]:
    if not end:
        return ()
    found = last[used, end]
    return (*_stretches(last, used - found.num, found.first), found)


def cheapest(cuts: Sequence[Cut]) -> Cut | None:
    """The first that costs no more than any: those with fewer shapes come first."""
    least = min((cut.cost for cut in cuts), default=0.0)
    return next((cut for cut in cuts if cut.cost <= least * _SAME), None)
