"""Which buckets would waste least on the sizes that requests had: arithmetic alone.

Sizes are known by the bounds of a histogram, so a request counts as large as its bin's bound;
the real elements are known exactly. Every request is taken to run at the largest sizes of the
smallest bucket that holds it. An engine that takes any size within a bucket wastes less.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.contracts.model.recipe import Bucket, DimRange

# For a master without buckets of its own, as a start.
_DEFAULT_ROWS = DimRange(min=1, opt=8, max=32)
_SHARES = (0.5, 0.9, 0.99)
_MAX_BOUNDS = 256
Cost = Callable[[int], float]


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


def time_per_request(seen: SizeCounts, edges: Sequence[int], cost: Cost) -> float:
    """Mean cost of a request that runs at the smallest edge that holds it, larger ones at the last.

    Args:
        seen: sizes of one dimension.
        edges: rising.
        cost: of a row by its size.
    """
    ran = sum(
        count * cost(next((edge for edge in edges if edge >= bound), edges[-1]))
        for bound, count in seen.counts.items()
    )
    return ran / seen.num_requests


def best_edges(seen: SizeCounts, num: int, largest: int, cost: Cost = float) -> list[int]:
    """Edges of buckets that cost least, by dynamic programming over the bounds that were seen.

    Args:
        seen: sizes of one dimension.
        num: at most so many edges.
        largest: the last edge; larger sizes count as this one.
        cost: of a row by its size; by default its elements, so that padding is least.

    Returns:
        Rising.
    """
    # Exact lengths are many: those of a stretch count as its end.
    step = -(-largest // _MAX_BOUNDS)
    counts: dict[int, float] = {largest: 0.0}
    for bound, count in seen.counts.items():
        if count:
            rounded = min(-(-bound // step) * step, largest)
            counts[rounded] = counts.get(rounded, 0.0) + count
    bounds = sorted(counts)
    costs = [cost(bound) for bound in bounds]
    # best[k][i]: the least elements that the first i bounds run at, with k edges.
    best = [[0.0] + [float("inf")] * len(bounds)]
    cuts: list[list[int]] = [[0] * (len(bounds) + 1)]
    for k in range(1, min(num, len(bounds)) + 1):
        row = [0.0] + [float("inf")] * len(bounds)
        cut = [0] * (len(bounds) + 1)
        for end in range(1, len(bounds) + 1):
            ran = 0.0
            for begin in range(end - 1, -1, -1):
                ran += counts[bounds[begin]] * costs[end - 1]
                if best[k - 1][begin] + ran < row[end]:
                    row[end] = best[k - 1][begin] + ran
                    cut[end] = begin
        best.append(row)
        cuts.append(cut)
    edges = []
    end = len(bounds)
    for k in range(len(best) - 1, 0, -1):
        if end:
            edges.append(bounds[end - 1])
            end = cuts[k][end]
    return edges[::-1]


def proposed_buckets(
    present: Sequence[Bucket],
    dim: str,
    edges: Sequence[int],
    seen: Mapping[str, SizeCounts],
    batch_dim: str | None,
    rows_of: Callable[[int], int] = lambda _: 1,
) -> list[Bucket]:
    """One bucket for each edge; other dimensions are as in the present ones.

    Args:
        present: buckets of the model; other dimensions are as in these.
        dim: the dimension that is split.
        edges: largest size of each new bucket, rising.
        seen: sizes by dimension.
        batch_dim: None for a model without.
        rows_of: rows that a bucket takes at least, by its edge.
    """
    least = min((bucket.dims[dim].min for bucket in present if dim in bucket.dims), default=1)
    buckets = []
    for below, edge in zip((0, *edges), edges, strict=False):
        opt = min(max(seen[dim].at_share(0.5, below, edge), 1), edge)
        ranges = _others(present, dim, edge, seen, batch_dim)
        if batch := ranges.get(batch_dim or ""):
            most = max(batch.max, rows_of(edge))
            ranges |= {str(batch_dim): batch.model_copy(update={"max": most})}
        span = DimRange(min=1 if below else min(least, 1), opt=opt, max=edge)
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
    return free | ({batch_dim: _DEFAULT_ROWS} if batch_dim in free else {})
