"""How many times faster one side is than another, from calls that were made side by side.

What a machine does besides meets both calls of a pair nearly alike, and their ratio hardly shows
it. The interval is that of a sign test: order statistics of the ratios, of whatever distribution
they are (Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2).
"""

from collections.abc import Sequence
from math import comb
from statistics import median

from services.contracts.ratio import Ratio

_MISSES = 0.01
# Of fewer pairs even the smallest and the largest ratio are no interval of 99 %.
FEWEST_PAIRS = 8


def ratio_of(baseline_s: Sequence[float], side_s: Sequence[float]) -> Ratio:
    """How many times faster a side is than the baseline.

    Args:
        baseline_s: seconds of its calls, eight at least.
        side_s: seconds of the side's calls, each made next to the baseline's of the same place.
    """
    ratios = sorted(b / s for b, s in zip(baseline_s, side_s, strict=True))
    rank = _rank(len(ratios))
    return Ratio(
        median=median(ratios), low=ratios[rank], high=ratios[-1 - rank], num_pairs=len(ratios)
    )


def _rank(num_pairs: int) -> int:
    """How many ratios lie outside of the interval at each end."""
    if num_pairs < FEWEST_PAIRS:
        raise ValueError(f"{num_pairs} pairs tell no interval, {FEWEST_PAIRS} do")
    rank, tail = 0, 0.0
    while True:
        tail += comb(num_pairs, rank) / 2**num_pairs
        if 2 * tail > _MISSES:
            return rank - 1
        rank += 1
