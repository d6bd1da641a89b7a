"""How many times faster one side is than another, from calls that were made side by side.

What a machine does besides meets both calls of a pair nearly alike, and their ratio hardly shows
it. The interval is that of a sign test: order statistics of the ratios, of whatever distribution
they are (Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2).

A load that is always there can meet two sides differently, however often they take turns: one
that waits for its slowest thread loses more. Pairs whose threads had a CPU whenever they wanted
one are counted alone where they are enough. Otherwise all are, and the interval holds what each
call may have taken without its waits. Two things bound that, and the narrower interval counts:
what waits add to a call by the side's own calls, of which some waited longer than others; and for
how long threads computed, which a load hardly changes: without waits a call takes at least as long
as its busiest thread computes, and at most as long as all of its threads do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, inf, prod, sqrt
from statistics import median

import numpy as np

from services.contracts.ratio import Ratio

_MISSES = 0.01
# Of fewer pairs even the smallest and the largest ratio are no interval of 99 %.
FEWEST_PAIRS = 8
# Each call meets a clock tick or a kernel's own thread.
_HARMLESS_WAITS = 0.05
# Of a ratio to the baseline that is below 1 and decides: the noise between two runs is about 5 %.
_SLOWER = 0.9
# Of one that is no figure.
_WIDE = 2.0
# Waits of threads side by side can add up to more than the call took.
_LEAST_SHARE = 0.01
# A thread that loses its CPU finds the caches of others there, and computes so much longer.
_COLD = 1.1
# Slopes of more calls than these take longer than they are worth.
_MOST_CALLS = 100
# The least difference of waits, as a share of the call, from which a slope can be computed.
_LEAST_DIFFERENCE = 0.01
# Of a normal distribution, 99 % lies within so many standard deviations.
_WITHIN = 2.576

# Seconds, at least and at most.
_Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    """A measured call.

    Attributes:
        waited_share: what its threads waited for a CPU, all together, of these seconds.
        least_s, most_s: what it takes at least and at most on a machine of its own, by how long
            its threads computed and did not wait.
    """

    seconds: float
    waited_share: float = 0.0
    least_s: float = 0.0
    most_s: float = inf

    @property
    def is_undisturbed(self) -> bool:
        """Whether its threads had a CPU whenever they wanted one."""
        return self.waited_share <= _HARMLESS_WAITS

    def without_waits(self, delay: float) -> float:
        """Seconds on a machine of its own, if each second of waits delayed it by so many."""
        if self.is_undisturbed:
            return self.seconds
        return self.seconds * max(1 - delay * self.waited_share, _LEAST_SHARE)

    @property
    def computing_s(self) -> _Bounds:
        """Seconds on a machine of its own, by how long its threads computed."""
        if self.is_undisturbed:
            return self.seconds, self.seconds
        least_s = self.seconds * _LEAST_SHARE
        # More than the whole call is what something else computed: of this call nothing is known.
        if self.least_s / _COLD <= self.seconds:
            least_s = max(least_s, self.least_s / _COLD)
        return least_s, max(least_s, min(self.most_s, self.seconds))


def ratio_of(baseline: Sequence[TimedCall], side: Sequence[TimedCall]) -> Ratio:
    """How many times faster a side is than the baseline.

    Args:
        baseline: its calls, eight at least.
        side: the side's calls, each made next to the baseline's of the same place.
    """
    pairs = list(zip(baseline, side, strict=True))
    undisturbed = [pair for pair in pairs if all(call.is_undisturbed for call in pair)]
    counted = undisturbed if len(undisturbed) >= FEWEST_PAIRS else pairs
    sides = [[pair[place] for pair in counted] for place in (0, 1)]
    by_waits = _ratio(*map(_by_waits, sides))
    by_computing = _ratio(*([call.computing_s for call in calls] for calls in sides))
    return min(by_waits, by_computing, key=lambda ratio: ratio.high / ratio.low)


def _ratio(baseline: Sequence[_Bounds], side: Sequence[_Bounds]) -> Ratio:
    pairs = list(zip(baseline, side, strict=True))
    rank = _rank(len(pairs))
    lows = sorted(b_least / s_most for (b_least, _), (_, s_most) in pairs)
    highs = sorted(b_most / s_least for (_, b_most), (s_least, _) in pairs)
    return Ratio(
        median=median(sqrt(prod(b) / prod(s)) for b, s in pairs),
        low=lows[rank],
        high=highs[-1 - rank],
        num_pairs=len(pairs),
    )


def _by_waits(calls: Sequence[TimedCall]) -> list[_Bounds]:
    low, high = _delays(calls)
    return [(call.without_waits(high), call.without_waits(low)) for call in calls]


def _delays(calls: Sequence[TimedCall]) -> tuple[float, float]:
    """Seconds that a second of waits delays a call by, at least and at most, from 0 to 1.

    The interval of 99 % of the slope of seconds over waits, by the slopes between any two calls
    (Sen, Journal of the American Statistical Association 63, 1968, pages 1379 to 1389).
    """
    if all(call.is_undisturbed for call in calls):
        return 0.0, 1.0
    chosen = calls[:: len(calls) // _MOST_CALLS + 1]
    seconds = np.array([call.seconds for call in chosen])
    waited = seconds * [call.waited_share for call in chosen]
    one, other = np.triu_indices(len(chosen), 1)
    more = waited[other] - waited[one]
    is_enough = np.abs(more) > _LEAST_DIFFERENCE * seconds[one]
    slopes = np.sort((seconds[other] - seconds[one])[is_enough] / more[is_enough]).tolist()
    n = len(chosen)
    outside = int((len(slopes) - _WITHIN * sqrt(n * (n - 1) * (2 * n + 5) / 18)) / 2)
    if outside < 0 or not slopes:
        return 0.0, 1.0
    low, high = (min(max(slopes[place], 0.0), 1.0) for place in (outside, -1 - outside))
    return low, high


def is_decided(ratios: Sequence[Ratio]) -> bool:
    """Whether intervals leave nothing open: which side is fastest, and which beat the baseline.

    Args:
        ratios: of all sides to the baseline, one at least.
    """
    fastest = max(ratios, key=lambda ratio: ratio.median)
    return all(
        (ratio.low >= 1 or ratio.high <= _SLOWER)
        and ratio.high <= _WIDE * ratio.low
        and (ratio is fastest or ratio.high < fastest.low)
        for ratio in ratios
    )


def _rank(num_pairs: int) -> int:
    """How many ratios lie outside of the interval at each end."""
    if num_pairs < FEWEST_PAIRS:
        raise ValueError(f"{num_pairs} pairs tell no interval, {FEWEST_PAIRS} do")
    rank = 0
    tail = 0.0
    while True:
        tail += comb(num_pairs, rank) / 2**num_pairs
        if 2 * tail > _MISSES:
            return rank - 1
        rank += 1
