"""The shape that an engine runs a batch at: its own sizes, or the smallest bucket around them.

Most engines take any size within a bucket, and then nothing is cheaper than the longest request
of the batch. Two kinds take less. One that was built from a smallest size on (a static batch or
length: min = max) needs larger inputs, made here. One whose kernels know a single shape for each
bucket pads its own inputs; here is only what that costs.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from services.contracts.model.recipe import Bucket, DimRange
from services.replica.batching.collate import JoinRules
from services.replica.request.signature import fits

_MAX_KNOWN = 1024
_MAX_ROWS_KNOWN = 256
_NO_BUCKET = np.iinfo(np.int64).max
Sizes = Mapping[str, int]


class RunShapes:
    """What the buckets of one engine make of the sizes of a batch.

    Attributes:
        is_exact: sizes stay as they are, so the cost of a run is its own elements.
    """

    def __init__(
        self, rules: JoinRules, buckets: Sequence[Bucket], *, pads_to_largest: bool = False
    ) -> None:
        """Take the buckets of an engine.

        Args:
            rules: which dimensions may grow, and which one is that of the rows.
            buckets: ranges of sizes that the engine takes.
            pads_to_largest: the engine knows no sizes but the largest of each bucket.
        """
        self._growing = rules.growing
        self._buckets = buckets
        self._pads_to_largest = pads_to_largest
        self._dim = rules.batch_dim or ""
        self._has_least = any(span.min > 1 for b in buckets for span in b.dims.values())
        # The same few shapes are asked for again and again, for each batch hundreds of times.
        self._known_costs = lru_cache(maxsize=_MAX_KNOWN)(self._costs_by_rows)
        self._known_rows = lru_cache(maxsize=_MAX_KNOWN)(self._most_rows)
        self._known_elements = lru_cache(maxsize=_MAX_KNOWN)(self._elements_computed)
        self.is_exact = not self._pads_to_largest and not self._has_least

    def joined(self, sizes: Sizes) -> Sizes:
        """The sizes that inputs are made for: what the cheapest bucket takes at least.

        Sizes that no bucket takes stay as they are; the engine raises then, with its bounds.
        """
        if not self._has_least:
            return sizes
        raised = [_raised(sizes, bucket) for bucket in self._buckets if self._fits(bucket, sizes)]
        return min(raised, key=elements_of, default=sizes)

    def num_elements(self, sizes: Sizes) -> int:
        """Elements that the engine computes for a batch of these sizes, all padding included."""
        return self._known_elements(tuple(sizes.items()))

    def _elements_computed(self, items: tuple[tuple[str, int], ...]) -> int:
        sizes = dict(items)
        if not self._pads_to_largest:
            return elements_of(self.joined(sizes))
        covering = [self._sizes_in(bucket, sizes) for bucket in self._buckets]
        return min((elements_of(each) for each in covering if each), default=elements_of(sizes))

    def costs_by_rows(self, lengths: Sizes) -> Sequence[int]:
        """`num_elements` of batches of these lengths, by the number of their rows, from 0 on."""
        return self._known_costs(tuple(lengths.items()))

    def _costs_by_rows(self, items: tuple[tuple[str, int], ...]) -> Sequence[int]:
        lengths = dict(items)
        most = int(min(self.rows_at(lengths), _MAX_ROWS_KNOWN))
        # All at once: row by row, lengths that are new took milliseconds of the event loop.
        rows = np.arange(1, most + 1)
        least = np.full(most, _NO_BUCKET)
        for bucket in self._buckets:
            taken = self._sizes_in(bucket, lengths)
            if taken is None:
                continue
            span = bucket.dims.get(self._dim, DimRange(min=1, opt=1, max=max(most, 1)))
            is_full = self._pads_to_largest and self._dim in bucket.dims
            costs = elements_of(taken) * np.maximum(rows, span.max if is_full else span.min)
            least = np.where(rows <= span.max, np.minimum(least, costs), least)
        return [0, *np.where(least == _NO_BUCKET, elements_of(lengths) * rows, least).tolist()]

    def _sizes_in(self, bucket: Bucket, sizes: Sizes) -> Sizes | None:
        """What a bucket makes of sizes; None when it does not take them."""
        if not self._fits(bucket, sizes):
            return None
        if not self._pads_to_largest:
            return _raised(sizes, bucket)
        dims = bucket.dims
        return {dim: dims[dim].max if dim in dims else size for dim, size in sizes.items()}

    def rows_at(self, sizes: Sizes) -> float:
        """The most rows that a bucket takes at these lengths; 0 when none takes them."""
        return self._known_rows(tuple([each for each in sizes.items() if each[0] != self._dim]))

    def _most_rows(self, items: tuple[tuple[str, int], ...]) -> float:
        return max(self._rows_of_each(dict(items)), default=0)

    def preferred_rows(self, sizes: Sizes) -> float:
        """The fewest rows, of more than one, that fill a bucket at these lengths.

        An idle engine waits for no more: a batch of that size is what the bucket is for.
        """
        several = [rows for rows in self._rows_of_each(sizes) if rows > 1]
        return min(several, default=1)

    def _rows_of_each(self, sizes: Sizes) -> list[float]:
        lengths = {dim: size for dim, size in sizes.items() if dim != self._dim}
        taking = [bucket for bucket in self._buckets if self._fits(bucket, lengths)]
        return [span.max if (span := each.dims.get(self._dim)) else math.inf for each in taking]

    def _fits(self, bucket: Bucket, sizes: Sizes) -> bool:
        return fits(bucket, sizes, self._growing)


def _raised(sizes: Sizes, bucket: Bucket) -> Sizes:
    """The sizes at which a bucket takes these, which fit it."""
    dims = bucket.dims
    return {dim: max(size, dims[dim].min) if dim in dims else size for dim, size in sizes.items()}


def elements_of(sizes: Sizes) -> int:
    """Rows times lengths: what the dynamic dimensions multiply everything by.

    What is empty counts as one: its run costs too, and 0 would hide what the others cost.
    """
    return math.prod([size or 1 for size in sizes.values()])
