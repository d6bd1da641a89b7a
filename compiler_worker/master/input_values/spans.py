"""Spans of integers, one for each place of a tensor or one for all: what the graph's rules move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

# Exact up to 2^53, far above the rows of any table, and infinite where nothing bounds a value.
Bounds = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """Least and largest integer, both allowed.

    Attributes:
        low, high: without axes where one span is for all places; else with the axes of their
            tensor, of size 1 along those where places are alike.
    """

    low: Bounds
    high: Bounds

    @classmethod
    def of(cls, low: float = -np.inf, high: float = np.inf) -> Self:
        """One span for all places, by default that of all integers."""
        return cls(low=np.array(low, np.float64), high=np.array(high, np.float64))

    def __and__(self, other: Self) -> "Spans":
        """What both hold."""
        return Spans(low=np.maximum(self.low, other.low), high=np.minimum(self.high, other.high))

    def __or__(self, other: Self) -> "Spans":
        """The least spans around both."""
        return Spans(low=np.minimum(self.low, other.low), high=np.maximum(self.high, other.high))

    @property
    def is_open(self) -> bool:
        """Whether all integers lie inside, at all places."""
        return bool(np.isneginf(self.low).all() and np.isposinf(self.high).all())

    @property
    def is_empty(self) -> bool:
        """Whether some place has no integer at all."""
        return bool((self.low > self.high).any())

    @property
    def is_uniform(self) -> bool:
        """Whether one span is for all places."""
        return self.low.ndim == 0

    def ends(self, change: Callable[[Bounds], Bounds]) -> "Spans":
        """With both ends moved alike."""
        return Spans(low=np.asarray(change(self.low)), high=np.asarray(change(self.high)))

    def joined(self, axes: Sequence[int], *, is_strict: bool) -> "Spans":
        """One span along these axes: strictly what all places hold, else what any does."""
        if self.is_uniform or not axes:
            return self
        lowest, highest = (np.max, np.min) if is_strict else (np.min, np.max)
        where = tuple(axes)
        return Spans(
            low=lowest(self.low, axis=where, keepdims=True),
            high=highest(self.high, axis=where, keepdims=True),
        )

    def uniform(self, *, is_strict: bool) -> "Spans":
        """One span for all places, where an op moves them and this does not follow it."""
        joined = self.joined(range(self.low.ndim), is_strict=is_strict)
        return joined.ends(lambda bounds: bounds.reshape(-1)[0]) if not self.is_uniform else self

    def fitted(self, shape: Sequence[int | None], *, is_strict: bool) -> "Spans":
        """For an operand of this shape, None for a dynamic size, that was broadcast to these.

        An element that was repeated has to lie in the spans of all its places.
        """
        if self.is_uniform:
            return self
        extra = self.low.ndim - len(shape)
        kept = self.joined(range(extra), is_strict=True)
        kept = kept.ends(lambda bounds: bounds.reshape(bounds.shape[extra:]))
        sizes = list(zip(kept.low.shape, shape, strict=True))
        kept = kept.joined([a for a, (_, want) in enumerate(sizes) if want == 1], is_strict=True)
        unknown = [a for a, (found, want) in enumerate(sizes) if want not in (1, found)]
        return kept.joined(unknown, is_strict=is_strict)

    def placed(self, rank: int, axis: int, size: int, places: Bounds) -> "Spans":
        """These spans at given places of a larger axis; all other places of it are open.

        Args:
            rank: of the larger tensor.
            axis: of it.
            size: of that axis.
            places: integers from 0 to `size` - 1, one for each place of these spans along the axis.
        """
        ends = []
        for bounds, nothing in ((self.low, -np.inf), (self.high, np.inf)):
            source = np.broadcast_to(bounds, _with(bounds, rank, axis, len(places)))
            target = np.full(_with(bounds, rank, axis, size), nothing)
            np.moveaxis(target, axis, 0)[places.astype(np.int64)] = np.moveaxis(source, axis, 0)
            ends.append(target)
        return Spans(low=ends[0], high=ends[1])

    def part(self, axis: int, start: int, size: int) -> "Spans":
        """The spans of `size` places along one axis, from `start` on.

        Args:
            axis: from 0 on.
            start: first place.
            size: number of places.
        """
        if self.is_uniform or self.low.shape[axis] == 1:
            return self
        return self.ends(lambda bounds: bounds.take(range(start, start + size), axis))


def _with(bounds: Bounds, rank: int, axis: int, size: int) -> tuple[int, ...]:
    """The shape of bounds in a tensor of that rank, with another size along one axis."""
    shape = list(bounds.shape) or [1] * rank
    shape[axis] = size
    return tuple(shape)
