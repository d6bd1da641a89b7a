"""Which of the requests that wait share the next batch, when their lengths differ.

Padding a short request to a long one's length costs what the padding computes; running it apart
costs a run more. The policy: what waits is cut into batches so that all of it together takes the
least time, a run costing `fixed + elements` (see `run_cost`), and the batch that holds the
oldest request of the highest priority runs next. So no request starves, and a long
request is padded for only where two batches would be slower: where the fixed part is nothing,
equals alone share a batch; where it is large, nearly anything does. `max_waste` of the recipe
bounds the share of padding besides. Padding of the engine's own (see `run_shapes`) counts as
cost but not as waste, as no other choice of companions avoids it.

Sorted by length the best batches are neighbours, so looking once from each request over those
that follow finds them. After each batch all is cut anew: more has arrived by then.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from services.replica.batching.collate import JoinRules
from services.replica.batching.run_shapes import RunShapes, elements_of

# Requests that are looked at, the most urgent first: it bounds the time that cutting takes to
# some 0.5 ms; an engine that is brief needs less than that for a batch.
MAX_CANDIDATES = 64
MAX_CANDIDATES_BRIEF = 16
# Elements that a run is taken to cost while nothing is known: more than all that may wait, so
# that the fewest batches are best.
_UNKNOWN_COST = 1e12
Sizes = Mapping[str, int]


class _Item(NamedTuple):
    """A request: elements of one row, its rows and its place among those that wait."""

    unit: int
    rows: int
    place: int
    sizes: Sizes


class _Box(NamedTuple):
    """The lengths of a batch.

    Attributes:
        max_rows: that it may have.
        least: real elements that it must have for each row.
        unit: what a row costs; 0 where `costs`, by the number of rows, has to say it.
    """

    lengths: Sizes
    max_rows: float
    least: float
    unit: int
    costs: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """The policy for one model and the engine in use.

    Attributes:
        rules: of the model.
        shapes: of the engine.
        fixed_elements: see `run_cost`; infinite while nothing is known.
        max_waste: largest share of padding to the longest request.
    """

    rules: JoinRules
    shapes: RunShapes
    fixed_elements: float
    max_waste: float

    def chosen(self, waiting: Sequence[Sizes]) -> list[int]:
        """Places of the requests for the next batch, ascending; 0 is always among them.

        Args:
            waiting: sizes of the requests that wait, in the order in which they are due.
        """
        oldest = waiting[0]
        dim = self._dim
        items = [
            _Item(_unit(sizes, dim), sizes[dim], place, sizes)
            for place, sizes in enumerate(waiting)
            if place == 0 or self.rules.merged(oldest, sizes) is not None
        ]
        # Longest first; among equals the one that is due first.
        items.sort(key=lambda item: (-item.unit, item.place))
        ends = self._ends(items)
        first = 0
        while all(item.place for item in items[first : ends[first]]):
            first = ends[first]
        return sorted(map(itemgetter(2), items[first : ends[first]]))

    def cuts(self, longest_first: Sequence[Sizes]) -> list[int]:
        """Where the batch ends that begins at each request, if all from there on is cut best.

        What it is does not depend on the requests before.
        """
        dim = self._dim
        return self._ends([_Item(_unit(each, dim), each[dim], 0, each) for each in longest_first])

    def _ends(self, items: Sequence[_Item]) -> list[int]:
        fixed = self.fixed_elements if math.isfinite(self.fixed_elements) else _UNKNOWN_COST
        costs = [0.0] * (len(items) + 1)
        ends = [0] * len(items)
        for first in range(len(items) - 1, -1, -1):
            if first + 1 == len(items) or items[first].sizes != items[first + 1].sizes:
                own = self._box(items[first].sizes)
            box = own
            best = math.inf
            rows = 0
            real = 0
            for last in range(first, len(items)):
                unit, more, _, sizes = items[last]
                # With one such dimension the first of the batch is the longest.
                if self._has_many and not _is_within(sizes, box.lengths):
                    box = self._box(_around(box.lengths, sizes))
                rows = rows + more
                real = real + more * unit
                if last > first and (rows > box.max_rows or real < box.least * rows):
                    break
                cost = fixed + costs[last + 1] + (box.unit * rows or self._cost(box, rows))
                if cost <= best:
                    best = cost
                    ends[first] = last + 1
            costs[first] = best
        return ends

    def _box(self, sizes: Sizes) -> _Box:
        lengths = {name: size for name, size in sizes.items() if name != self._dim}
        unit = elements_of(lengths)
        return _Box(
            lengths=lengths,
            max_rows=self.shapes.rows_at(lengths),
            least=(1 - self.max_waste) * unit,
            unit=unit if self.shapes.is_exact else 0,
            costs=() if self.shapes.is_exact else self.shapes.costs_by_rows(lengths),
        )

    def _cost(self, box: _Box, rows: int) -> int:
        if rows < len(box.costs):
            return box.costs[rows]
        return self.shapes.num_elements({**box.lengths, self._dim: rows})

    @property
    def _dim(self) -> str:
        return self.rules.batch_dim or ""

    @cached_property
    def _has_many(self) -> bool:
        return len(self.rules.paddable) > 1


def _is_within(sizes: Sizes, target: Sizes) -> bool:
    return all(sizes[dim] <= size for dim, size in target.items())


def _around(target: Sizes, sizes: Sizes) -> Sizes:
    return {dim: max(size, sizes[dim]) for dim, size in target.items()}


def _unit(sizes: Sizes, dim: str) -> int:
    """Elements of one row of these sizes."""
    return elements_of({name: size for name, size in sizes.items() if name != dim})
