"""What a row costs by its length, as the proofs of engines measured it."""

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate

from services.cli.sizes.bucket_advice import Cost
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry


def measured_cost(registry: Registry, version: ModelVersion, dim: str) -> tuple[Cost, str] | None:
    """Seconds of a row by its size in a dimension, and the generation; None of nothing measured.

    At each size that engines of the generation with most engines were timed at, the quickest of
    them and its best batch; straight between those, and in proportion beyond them.

    Args:
        registry: has the engines.
        version: of its master, whatever buckets they were built for.
        dim: not that of the rows.
    """
    by_place: dict[str, dict[int, float]] = defaultdict(dict)
    batch_dim = version.recipe.batching.batch_dim or ""
    for engine in registry.engines(version.master.digest):
        if engine.proof.outcome is not ProofOutcome.PASSED:
            continue
        least = by_place[engine.manifest.key.generation]
        for timing in engine.proof.timings:
            if size := timing.sizes.get(dim):
                row_s = timing.p50_s / timing.sizes.get(batch_dim, 1)
                least[size] = min(least.get(size, row_s), row_s)
    if not any(by_place.values()):
        return None
    generation = max(by_place, key=lambda each: len(by_place[each]))
    sizes = sorted(by_place[generation])
    # A shorter row is never dearer: what says so is noise.
    costs = list(accumulate((by_place[generation][size] for size in sizes), max))

    def cost(size: int) -> float:
        at = bisect_left(sizes, size)
        if at in (0, len(sizes)):
            end = max(at - 1, 0)
            return costs[end] * size / sizes[end]
        share = (size - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return costs[at - 1] + share * (costs[at] - costs[at - 1])

    return cost, generation
