"""What a row takes by its size in a dimension, from the timings of a model's proofs."""

import math
from dataclasses import dataclass

from services.cli.planning.curves import Curve, MeasuredSide, measured_curves
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry

# A run of twice the rows delays the first of them: it has to compute this many times the rows/s.
_WORTHWHILE_GAIN = 1.25


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """What was timed, as costs of one dimension.

    Attributes:
        curve: seconds of a run by its elements.
        name: what computes, and where.
        rows: of a full batch, by the largest size of each bucket of the recipe, rising.
        others: elements of a row beside this dimension, at most.
    """

    curve: Curve
    name: str
    rows: dict[int, int]
    others: int

    def seconds(self, size: int) -> float:
        """What a row of a full batch takes, with the rows that the recipe has for it."""
        edges = list(self.rows)
        return self._row_s(size, self.rows[next((e for e in edges if e >= size), edges[-1])])

    def best_seconds(self, size: int) -> float:
        """What a row of a full batch takes, with the rows that are best for the size."""
        return self._row_s(size, self.best_rows(size))

    def best_rows(self, size: int) -> int:
        """Rows that a bucket of this size should take: never fewer than the largest takes.

        Doubled as long as that pays, by runs that were timed, and no run has more elements than
        today's largest, whose memory is known. Clients may send what they may send today.
        """
        largest, rows = list(self.rows.items())[-1]
        least = self.curve.elements[0] / self.others
        most = rows * largest
        while rows * size >= least and 2 * rows * size <= most:
            if self._row_s(size, rows) < _WORTHWHILE_GAIN * self._row_s(size, 2 * rows):
                break
            rows *= 2
        return rows

    def _row_s(self, size: int, rows: int) -> float:
        return self.curve.run_s(rows * self.others * size) / rows


def measured_cost(registry: Registry, model: ModelVersion, dim: str) -> MeasuredCost | None:
    """What a row takes by its size in a dimension; None where nothing was timed.

    In a batch that is full, and at the largest sizes of other dimensions.

    Args:
        registry: of the store.
        model: with its buckets.
        dim: whose sizes are asked for.
    """
    batch_dim = model.recipe.batching.batch_dim or ""
    spans = [bucket.dims for bucket in model.buckets if dim in bucket.dims]
    rows = {each[dim].max: each[batch_dim].max if batch_dim in each else 1 for each in spans}
    curves = measured_curves(registry, model)
    found = [
        (generation, sides[side])
        for generation, sides in sorted(curves.items())
        for side in MeasuredSide
        if side in sides
    ]
    if not found or not spans:
        return None
    generation, curve = next((pair for pair in found if pair[1].pads_to_largest), found[0])
    beside = [s.max for name, s in spans[-1].items() if name not in (dim, batch_dim)]
    name = f"{curve.name} on {generation}"
    rising = dict(sorted(rows.items()))
    return MeasuredCost(curve=curve, name=name, rows=rising, others=math.prod(beside))
