"""What a row takes by its size in a dimension, from the timings of a model's proofs."""

import math
from typing import NamedTuple

from services.cli.sizes.bucket_advice import Cost
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry


class MeasuredCost(NamedTuple):
    """What was timed.

    Attributes:
        seconds: of a row by its size.
        name: what computes, and where.
        pads_to_largest: it computes a bucket's largest size, so buckets spare it padding.
    """

    seconds: Cost
    name: str
    pads_to_largest: bool


def measured_cost(registry: Registry, model: ModelVersion, dim: str) -> MeasuredCost | None:
    """What a row takes by its size in a dimension; None where nothing was timed.

    In a batch that is full, and at the largest sizes of other dimensions.

    Args:
        registry: of the store.
        model: with its buckets.
        dim: whose sizes are asked for.
    """
    from services.cli.planning.curves import MeasuredSide, measured_curves

    spans = model.buckets[-1].dims
    rows = spans[batch_dim].max if (batch_dim := model.recipe.batching.batch_dim) in spans else 1
    others = math.prod(span.max for name, span in spans.items() if name != dim)
    curves = measured_curves(registry, model)
    found = [
        (generation, sides[side])
        for generation, sides in sorted(curves.items())
        for side in MeasuredSide
        if side in sides
    ]
    if not found:
        return None
    generation, curve = next((pair for pair in found if pair[1].pads_to_largest), found[0])
    return MeasuredCost(
        lambda size: curve.run_s(others * size) / rows,
        f"{curve.name} on {generation}",
        pads_to_largest=curve.pads_to_largest,
    )
