"""The sizes that a bucket is proven and timed at."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from services.contracts.model.recipe import Bucket


def edge_sizes(bucket: Bucket) -> list[dict[str, int]]:
    """Concrete sizes that cover a bucket: every dimension at its min, opt and max.

    All combinations for one and two dimensions. For more, whose combinations explode:
    all at min, opt and max, and each at one end while the others are at the other.
    Where a dimension begins at 0, so it does at 1: what is fixed for either serves both.
    """
    names = sorted(bucket.dims)
    ranges = [bucket.dims[name] for name in names]
    if len(names) <= 2:
        corners = list(product(*((r.min, max(r.min, 1), r.opt, r.max) for r in ranges)))
    else:
        low, opt, high = ([getattr(r, end) for r in ranges] for end in ("min", "opt", "max"))
        least = [max(r.min, 1) for r in ranges]
        corners = [tuple(low), tuple(least), tuple(opt), tuple(high)]
        for i in range(len(names)):
            corners.append((*high[:i], low[i], *high[i + 1 :]))
            corners.append((*low[:i], high[i], *low[i + 1 :]))
    return [dict(zip(names, corner, strict=True)) for corner in dict.fromkeys(corners)]


def each_once(
    buckets: Sequence[Bucket], sizes_of: Callable[[Bucket], list[dict[str, int]]]
) -> list[tuple[Bucket, dict[str, int]]]:
    """Sizes of all buckets, without those of an earlier bucket.

    An engine is given sizes, never a bucket's name: the same sizes run the same code.

    Args:
        buckets: in the order of the recipe.
        sizes_of: those to draw of each.
    """
    first: dict[tuple[tuple[str, int], ...], tuple[Bucket, dict[str, int]]] = {}
    for bucket in buckets:
        for sizes in sizes_of(bucket):
            first.setdefault(tuple(sorted(sizes.items())), (bucket, sizes))
    return list(first.values())


def timed_sizes(bucket: Bucket) -> list[dict[str, int]]:
    """The sizes at which an engine is timed: all at opt, all at max."""
    opt = {name: r.opt for name, r in bucket.dims.items()}
    largest = {name: r.max for name, r in bucket.dims.items()}
    return [opt] if opt == largest else [opt, largest]


def largest_but_one(bucket: Bucket) -> dict[str, int]:
    """Each size one below its largest, where the bucket has such a size."""
    return {name: max(r.min, r.max - 1) for name, r in bucket.dims.items()}


def least_but_one(bucket: Bucket) -> dict[str, int]:
    """Each size one above its least that is not 0: a few rows have kernels of their own too."""
    return {name: min(max(r.min, 1) + 1, r.max) for name, r in bucket.dims.items()}


def interior_sizes(bucket: Bucket, generator: np.random.Generator) -> dict[str, int]:
    """Sizes inside of a bucket, no power of two where there is another one.

    Edges are sizes that were chosen, and so mostly powers of two: kernels take other ways for
    what is left over at the end of a row.
    """
    return {name: _interior(r.min, r.max, generator) for name, r in sorted(bucket.dims.items())}


def _interior(low: int, high: int, generator: np.random.Generator) -> int:
    # A range that is empty is false: then its ends are all there is.
    inner = range(low + 1, high) or range(low, high + 1)
    # Of a long range a few are enough to find one that is no power of two.
    found = [int(inner[i]) for i in generator.integers(0, len(inner), size=8)]
    return next((size for size in found if size & (size - 1)), found[0])
