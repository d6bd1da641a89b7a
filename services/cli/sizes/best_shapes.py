"""Shapes (rows and a length) at which traffic takes the least time: an exact search.

Lengths are cut into stretches, each with the largest rows of a batch and perhaps smaller batches
below it, so many shapes in all. Rows of a stretch and stretches of all lengths are the same
problem, solved by the same dynamic programming: that of the rows says what a stretch costs by
the number of its shapes. A replica takes the cheapest shape that holds a batch, also one of
longer requests with fewer rows: so a batch takes no longer than what is minimised here.

An idle engine that waits for companions (`max_delay_ms`) stops once a bucket is full: a shape of
few rows would make batches smaller than those that were seen, so none is added there.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.cli.sizes.measured_cost import MeasuredCost
from services.contracts.errors import InvalidRequestError

# Sums of the same numbers in another order differ by less.
_SAME = 1 + 1e-9

_MAX_BOUNDS = 256
# A run of twice the rows delays the first of them: it has to compute this many times the rows/s.
_WORTHWHILE_GAIN = 1.25


class Shape(NamedTuple):
    """The largest sizes of a bucket: of one dimension, and the rows of a batch."""

    size: int
    rows: int


class _Ladder(NamedTuple):
    """Rows of the shapes of one stretch, rising, and seconds of all requests up to each length."""

    sums_s: NDArray[np.float64]
    rows: tuple[int, ...]

    def cost_s(self, first: int, last: int) -> float:
        """Seconds of the requests of a stretch of lengths."""
        return float(self.sums_s[last + 1] - self.sums_s[first])


class ShapeSearch:
    """What traffic costs at given shapes, and the shapes where it costs least."""

    def __init__(
        self,
        present: Sequence[Shape],
        sizes: Mapping[int, float],
        batches: Mapping[int, float],
        cost: MeasuredCost,
        *,
        may_grow: bool = True,
        is_exact: bool = False,
        is_delayed: bool = False,
    ) -> None:
        """Take the traffic.

        Args:
            present: shapes of the recipe: what they take is taken by every proposal too, and no
                run has more elements than their largest, whose memory is known.
            sizes: requests by size; those above the largest shape count as that.
            batches: runs by their rows; without any all are full.
            cost: of runs.
            may_grow: batches may have more rows than now.
            is_exact: runs have the sizes of their requests, so that other lengths save nothing.
            is_delayed: an idle engine waits until what waits fills a bucket, of any rows.
        """
        self._present = present
        self._cost = cost
        self._may_grow = may_grow
        self._is_exact = is_exact
        self._is_delayed = is_delayed
        self._full = max(shape.rows for shape in present)
        self._usual = max(present).rows
        self._most = max(shape.size * shape.rows for shape in present)
        # More may have waited than a full batch took, so these fill any.
        runs: dict[int, float] = {}
        for rows, count in sorted((batches or {self._full: 1.0}).items()):
            held = min(rows, self._full)
            runs[held] = runs.get(held, 0.0) + count
        self._runs = runs
        self._num_rows = sum(rows * count for rows, count in self._runs.items())
        self._sizes = _rounded(sizes, [shape.size for shape in present])
        self._own_sizes_up_to = lru_cache(maxsize=None)(self._at_own_sizes)

    def best(self, num: int) -> list[Shape]:
        """At most so many shapes, by size and rows; the fewest of those that cost the same.

        Raises:
            InvalidRequestError: more are needed for what the present ones take.
        """
        bounds = list(self._sizes)
        least = [max(s.rows for s in self._present if s.size > b) for b in (0, *bounds[:-1])]
        ladders = {
            (rows, size): self._ladders(size, rows, num)
            for rows, size in product(set(least), bounds)
        }
        most = max(map(len, ladders.values()))
        costs = np.full((most, len(bounds), len(bounds)), np.inf)
        for last, size in enumerate(bounds):
            for first in range(last + 1):
                for own, choices in enumerate(ladders[least[first], size]):
                    ladder = _cheapest_ladder(choices, first, last)
                    costs[own, first, last] = ladder.cost_s(first, last)
        cut = cheapest(best_cuts(costs, min(num, most * len(bounds))))
        if cut is None:
            raise InvalidRequestError(
                f"{num} buckets are too few: present ones take more rows of short requests than of "
                "long ones, and fewer buckets would not; propose more (--num)"
            )
        shapes: list[Shape] = []
        for first, last, own in cut.stretches:
            ladder = _cheapest_ladder(ladders[least[first], bounds[last]][own - 1], first, last)
            shapes += [Shape(bounds[last], rows) for rows in ladder.rows]
        return shapes

    def mean_s(self, shapes: Sequence[Shape]) -> float:
        """Mean seconds of a row; a batch runs at the cheapest shape that holds it."""
        total_s = 0.0
        for size, count in self._sizes.items():
            holding = [shape for shape in shapes if shape.size >= size]
            for rows, runs in self._runs.items():
                took_s = min(self._waiting_s(size, rows, shape) for shape in holding)
                total_s += count * runs * took_s
        return total_s / self._num_rows / sum(self._sizes.values())

    def _waiting_s(self, size: int, rows: int, shape: Shape) -> float:
        """Seconds for rows of this size that wait together."""
        ran = size if self._is_exact else shape.size
        if rows < self._full and rows <= shape.rows:
            return self._run_s(ran, shape.rows if self._pads else rows)
        return rows / shape.rows * self._run_s(ran, shape.rows)

    def _ladders(self, size: int, least: int, num: int) -> list[list[_Ladder]]:
        """Rows for a size by their number, from 1 on, one choice for each limit of its memory."""
        own = 1 if self._is_delayed else num
        found = [self._up_to(most, size, own) for most in self._limits(size, least)]
        longest = max(map(len, found), default=0)
        return [[each[min(n, len(each) - 1)] for each in found] for n in range(longest)]

    def _limits(self, size: int, least: int) -> Iterator[int]:
        """Largest rows that a size could have, by runs that were timed."""
        rows = least
        while rows * size <= self._most:
            yield rows
            if not self._may_grow or not self._cost.is_timed(size, rows):
                return
            rows *= 2

    def _up_to(self, most: int, size: int, num: int) -> list[_Ladder]:
        """The best rows for a size that has this limit, by their number."""
        if self._is_exact:
            return [self._own_sizes_up_to(most)]
        sums = np.array([0.0, *self._sizes.values()]).cumsum()
        found = self._rows_up_to(most, size, num)
        return [_Ladder(row_s * sums, rows) for row_s, rows in found]

    def _at_own_sizes(self, most: int) -> _Ladder:
        """Batches of up to so many rows, each at the length of its requests."""
        costs = [n * self._rows_up_to(most, size, 1)[0][0] for size, n in self._sizes.items()]
        return _Ladder(np.array([0.0, *costs]).cumsum(), (most,))

    def _rows_up_to(self, most: int, size: int, num: int) -> list[tuple[float, tuple[int, ...]]]:
        """Seconds of a row at this size and rows of the shapes, by their number."""
        smaller = {n: runs for n, runs in self._runs.items() if n < min(most, self._full)}
        others = sum(n * runs for n, runs in self._runs.items() if n not in smaller)
        edges = [*smaller, most]
        delay = (most / self._usual) ** log2(_WORTHWHILE_GAIN)
        weights = np.array([*smaller.values(), others / most * delay])
        seconds = np.array([self._run_s(size, rows) for rows in edges])
        if not self._pads:
            weights = weights * seconds
            seconds = np.ones(len(edges))
        sums = np.array([0.0, *weights]).cumsum()
        costs = np.subtract.outer(sums[1:], sums[:-1]).T * seconds
        return [
            (cut.cost / self._num_rows, tuple(edges[each.last] for each in cut.stretches))
            for cut in best_cuts(costs[np.newaxis], min(num, len(edges)))
        ]

    @property
    def _pads(self) -> bool:
        return self._cost.curve.pads_to_largest

    def _run_s(self, size: int, rows: int) -> float:
        return self._cost.run_s(size, rows)


def _cheapest_ladder(choices: Sequence[_Ladder], first: int, last: int) -> _Ladder:
    return min(choices, key=lambda each: each.cost_s(first, last))


def _rounded(sizes: Mapping[int, float], edges: Sequence[int]) -> dict[int, float]:
    """Counts by size, rising; exact lengths are many, so those of a stretch count as its end."""
    largest = max(edges)
    step = -(-largest // _MAX_BOUNDS)
    counts = dict.fromkeys(edges, 0.0)
    for size, count in sizes.items():
        if count:
            rounded = min(-(-size // step) * step, largest)
            counts[rounded] = counts.get(rounded, 0.0) + count
    return dict(sorted(counts.items()))


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
        costs_NIJ: [N, I, J], of items I to J as one stretch with N + 1 shapes; inf where that
            cannot be.
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
