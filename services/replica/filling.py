"""A batch while it is formed: which calls fit beside those it has, and when it is full."""

from collections.abc import Mapping

from services.replica.joining import JoinRules
from services.replica.run_shapes import RunShapes


class Filling:
    """The sizes of a growing batch.

    Calls of one model mostly have the same lengths. For those only rows are added up; what
    buckets allow is asked again when the lengths change.

    Attributes:
        sizes: the dynamic dimensions of what is joined so far; empty before the first call.
    """

    def __init__(self, rules: JoinRules, shapes: RunShapes) -> None:
        """Begin empty, for an engine that takes these shapes."""
        self.sizes: dict[str, int] = {}
        self._rules, self._shapes = rules, shapes
        self._dim = rules.batch_dim or ""
        self._newest: Mapping[str, int] = {}
        self._max_rows = 0.0

    @property
    def is_full(self) -> bool:
        """Whether not even one more row of the same lengths fits."""
        if self._rules.batch_dim is None:
            return True
        return bool(self.sizes) and self.sizes[self._dim] >= self._max_rows

    @property
    def is_due(self) -> bool:
        """Whether it fills a bucket, so that nothing is gained by waiting for more."""
        if self.is_full:
            return True
        return bool(self.sizes) and self.sizes[self._dim] >= self._shapes.preferred_rows(self.sizes)

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
        if merged is None or merged[self._dim] > self._shapes.rows_at(merged):
            return False
        self._grow_to(merged, sizes)
        return True

    def _grow_to(self, merged: dict[str, int], newest: Mapping[str, int]) -> None:
        self.sizes, self._newest = merged, newest
        self._max_rows = self._shapes.rows_at(merged)
