"""What a row takes by its size in a dimension, from the timings of a model's proofs."""

import math
from dataclasses import dataclass

from services.cli.planning.curves import Curve, MeasuredSide, measured_curves
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """What was timed, as costs of one dimension.

    Attributes:
        curve: seconds of a run by its elements.
        name: what computes, and where.
        others: elements of a row beside this dimension, at most.
    """

    curve: Curve
    name: str = ""
    others: int = 1

    def run_s(self, size: int, rows: int) -> float:
        """What a run takes of so many rows of this size.

        Below the smallest that was timed on the line through the two smallest ones, and in
        proportion to elements where one alone was timed: what buckets for short requests gain
        is seen once they are built.
        """
        elements = rows * self.others * size
        least, *more = self.curve.elements
        took_s = self.curve.run_s(elements)
        if elements >= least:
            return took_s
        in_proportion_s = took_s * elements / least
        if not more:
            return in_proportion_s
        slope_s = (self.curve.seconds[1] - took_s) / (more[0] - least)
        return max(took_s - slope_s * (least - elements), in_proportion_s)

    def is_timed(self, size: int, rows: int) -> bool:
        """Whether it is no smaller than the smallest run that was timed."""
        return rows * self.others * size >= self.curve.elements[0]


# Where nothing was timed: in proportion to elements.
BY_ELEMENTS = MeasuredCost(curve=Curve(name="elements", elements=(1,), seconds=(1.0,)))


def measured_cost(registry: Registry, model: ModelVersion, dim: str) -> MeasuredCost | None:
    """What runs take by a dimension's size, others being at their largest; None if none was timed.

    Args:
        registry: of the store.
        model: with its buckets.
        dim: whose sizes are asked for.
    """
    batch_dim = model.recipe.batching.batch_dim or ""
    spans = [bucket.dims for bucket in model.buckets if dim in bucket.dims]
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
    doubt = " (timed while its machine was busy)" if curve.is_wild else ""
    name = f"{curve.name} on {generation}{doubt}"
    return MeasuredCost(curve=curve, name=name, others=math.prod(beside))
