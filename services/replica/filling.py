"""A batch while it is formed: which calls fit beside those it has, and when it is full."""

import math
from collections.abc import Mapping, Sequence

from services.contracts.recipe import Bucket
from services.replica.joining import JoinRules
from services.replica.signature import fits

# Rows of a batch when neither recipe nor engine names a bucket.
DEFAULT_MAX_ROWS = 32


class Filling:
    """The sizes of a growing batch.

    Calls of one model mostly have the same lengths. For those only rows are added up; what
    buckets allow is asked again when the lengths change.

    Attributes:
        sizes: the dynamic dimensions of what is joined so far; empty before the first call.
    """

    def __init__(self, rules: JoinRules, buckets: Sequence[Bucket]) -> None:
        """Begin empty, for an engine with these buckets."""
        self.sizes: dict[str, int] = {}
        self._rules, self._buckets = rules, buckets
        self._dim = rules.batch_dim or ""
        self._newest: Mapping[str, int] = {}
        self._max_rows = 0.0

    @property
    def is_full(self) -> bool:
        """Whether not even one more row of the same lengths fits."""
        if self._rules.batch_dim is None:
            return True
        return bool(self.sizes) and self.sizes[self._dim] >= self._max_rows

    def begin(self, sizes: Mapping[str, int]) -> None:
        """Take the first call, whatever its sizes: it has to run in some batch."""
        self._grow_to(dict(sizes), sizes)

    def add(self, sizes: Mapping[str, int]) -> bool:
        """Take another call if it can run with the others and a bucket holds them all."""
        if sizes == self._newest and self._rules.batch_dim is not None:
            rows = self.sizes[self._dim] + sizes[self._dim]
            if rows > self._max_rows:
                return False
            self.sizes[self._dim] = rows
            return True
        merged = self._rules.merged(self.sizes, sizes)
        if merged is None or merged[self._dim] > self._rows_at(merged):
            return False
        self._grow_to(merged, sizes)
        return True

    def _grow_to(self, merged: dict[str, int], newest: Mapping[str, int]) -> None:
        self.sizes, self._newest = merged, newest
        self._max_rows = self._rows_at(merged)

    def _rows_at(self, sizes: Mapping[str, int]) -> float:
        """The most rows that a bucket takes at these lengths; 0 when none takes them."""
        if not self._buckets:
            return DEFAULT_MAX_ROWS
        lengths = {dim: size for dim, size in sizes.items() if dim != self._dim}
        spans = [bucket.dims.get(self._dim) for bucket in self._buckets if fits(bucket, lengths)]
        return max((span.max if span else math.inf for span in spans), default=0)
