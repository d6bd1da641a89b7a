"""Which buckets would waste least on the sizes that requests had: arithmetic alone.

Sizes are known by the bounds of a histogram, so a request counts as large as its bin's bound;
the real elements are known exactly. Every request is taken to run at the largest sizes of the
smallest bucket that holds it. An engine that takes any size within a bucket wastes less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.cli.sizes.best_shapes import Shape
from services.contracts.model.recipe import Bucket, DimRange

# For a master without buckets of its own, as a start.
DEFAULT_ROWS = DimRange(min=1, opt=8, max=32)
_SHARES = (0.5, 0.9, 0.99)


@dataclass
class SizeCounts:
    """What was seen of one dimension.

    Attributes:
        counts: requests by the upper bound of their size.
        total: sum of all sizes.
    """

    counts: dict[int, float] = field(default_factory=dict)
    total: float = 0.0

    @property
    def num_requests(self) -> float:
        """How many were seen."""
        return sum(self.counts.values())

    @property
    def largest(self) -> int:
        """The bound of the largest; 0 when none was seen."""
        return max((bound for bound, count in self.counts.items() if count), default=0)

    @property
    def quantiles(self) -> dict[str, int]:
        """Bounds that half, nine tenths and all but a hundredth of the requests keep."""
        return {f"p{round(100 * share)}": self.at_share(share) for share in _SHARES}

    def at_share(self, share: float, above: int = 0, up_to: int | None = None) -> int:
        """The smallest bound that a share of the requests does not exceed.

        Args:
            share: 0.5 is the median.
            above: only sizes above this count.
            up_to: only bounds up to this count; None for all.

        Returns:
            `up_to`, or 0 without it, where no request lies in the range.
        """
        chosen = {
            bound: count
            for bound, count in sorted(self.counts.items())
            if bound > above and (up_to is None or bound <= up_to)
        }
        wanted = share * sum(chosen.values())
        seen = 0.0
        for bound, count in chosen.items():
            seen += count
            if count and seen >= wanted:
                return bound
        return up_to or 0


def waste(seen: SizeCounts, edges: Sequence[int]) -> float:
    """The share of padding if each request runs at the smallest edge that holds it."""
    ran = sum(
        count * min((edge for edge in edges if edge >= bound), default=max(bound, *edges))
        for bound, count in seen.counts.items()
    )
    return max(1 - seen.total / ran, 0.0) if ran else 0.0


def edges_of(buckets: Sequence[Bucket], dim: str) -> list[int]:
    """The largest sizes that buckets have in a dimension, ascending."""
    return sorted({bucket.dims[dim].max for bucket in buckets if dim in bucket.dims})


def shapes_of(buckets: Sequence[Bucket], dim: str, batch_dim: str | None) -> list[Shape]:
    """Shapes of the buckets that have a dimension, by its size.

    Args:
        buckets: of the recipe.
        dim: whose largest sizes are taken.
        batch_dim: whose largest sizes are the rows; 1 of a bucket without it.
    """
    spans = [bucket.dims for bucket in buckets if dim in bucket.dims]
    rows = [each[batch_dim].max if batch_dim in each else 1 for each in spans]
    return sorted(Shape(each[dim].max, most) for each, most in zip(spans, rows, strict=True))


def proposed_buckets(
    present: Sequence[Bucket],
    dim: str,
    shapes: Sequence[Shape],
    seen: Mapping[str, SizeCounts],
    batch_dim: str | None,
) -> list[Bucket]:
    """One bucket for each shape; other dimensions are as in the present ones.

    Args:
        present: buckets of the model; other dimensions are as in these.
        dim: the dimension that is split.
        shapes: of the new buckets, by size.
        seen: sizes by dimension.
        batch_dim: None for a model without.
    """
    least = min((bucket.dims[dim].min for bucket in present if dim in bucket.dims), default=1)
    buckets = []
    for shape in shapes:
        below = max((s.size for s in shapes if s.size < shape.size), default=0)
        opt = min(max(seen[dim].at_share(0.5, below, shape.size), 1), shape.size)
        ranges = _others(present, dim, shape.size, seen, batch_dim)
        if batch := ranges.get(batch_dim or ""):
            rows = {"opt": min(batch.opt, shape.rows), "max": shape.rows}
            ranges |= {str(batch_dim): batch.model_copy(update=rows)}
        span = DimRange(min=1 if below else min(least, 1), opt=opt, max=shape.size)
        buckets.append(Bucket(dims=ranges | {dim: span}))
    return buckets


def _others(
    present: Sequence[Bucket],
    dim: str,
    edge: int,
    seen: Mapping[str, SizeCounts],
    batch_dim: str | None,
) -> dict[str, DimRange]:
    """Ranges of the other dimensions: the widest of the buckets that hold this size."""
    holding = [bucket.dims for bucket in present if dim in bucket.dims]
    holding = [dims for dims in holding if dims[dim].max >= edge]
    if holding:
        spans = [item for dims in reversed(holding) for item in dims.items() if item[0] != dim]
        widest = dict(sorted(spans, key=lambda item: (item[0], item[1].max)))
        return {n: s.model_copy(update={"min": min(s.min, 1)}) for n, s in widest.items()}
    free = {
        name: DimRange(min=1, opt=max(each.at_share(0.5), 1), max=max(each.largest, 1))
        for name, each in sorted(seen.items())
        if name != dim
    }
    return free | ({batch_dim: DEFAULT_ROWS} if batch_dim in free else {})
