"""Distances that show what one norm over everything hides: each column on its own scale.

A score of 0 to 1 beside coordinates of hundreds, or 1000 give or take 1, is nothing in a norm.
Here every index of an axis (a feature, a class, a channel) is centred, and its error is measured
against its own spread over everything that was drawn.

Legend: r = rows (all elements of one index), c = indices of one axis.
Sums are merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances" (1979): a large mean costs no digits of a small spread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# Fewer rows have no spread worth the name.
MIN_ROWS = 4
# A spread that is nothing but rounding, relative to the size of the values: of outputs of float64
# (seconds since 1970, for one), and of all others, which float32 holds.
_ROUNDING_OF_DOUBLES = 1e-12
_ROUNDING = 1e-6
# Nor does one count that is within the error of eager float32.
_EAGER_FACTOR = 10.0


@dataclass(frozen=True, kw_only=True)
class ColumnSums:
    """Moments of a reference and of an engine's errors, for each index of one axis.

    All are float64 [c].

    Attributes:
        num: elements counted.
        mean, error_mean: of the reference, of the errors.
        squares, products, error_squares: sums of squares of the centred reference, of its
            products with the centred errors, and of the errors as they are.
    """

    num: Float64
    mean: Float64
    squares: Float64
    error_mean: Float64
    products: Float64
    error_squares: Float64

    @classmethod
    def of(cls, found_cr: Float64, wanted_cr: Float64, keep_cr: NDArray[np.bool_]) -> "ColumnSums":
        """Sum up one array, of which only some elements count.

        Args:
            found_cr: the engine's values, float64 [c, r].
            wanted_cr: the reference's, of the same shape.
            keep_cr: False where an element is left out; values there may be NaN.
        """
        weights = keep_cr.astype(np.float64)
        num = weights.sum(axis=1)
        per = np.maximum(num, 1.0)
        error = np.where(keep_cr, found_cr - wanted_cr, 0.0)
        mean = np.where(keep_cr, wanted_cr, 0.0).sum(axis=1) / per
        error_mean = error.sum(axis=1) / per
        centred = np.where(keep_cr, wanted_cr - mean[:, None], 0.0)
        return cls(
            num=num,
            mean=mean,
            squares=(centred**2).sum(axis=1),
            error_mean=error_mean,
            products=(centred * error).sum(axis=1),
            error_squares=(error**2).sum(axis=1),
        )

    def merged(self, other: "ColumnSums") -> "ColumnSums":
        """Of both together."""
        num = self.num + other.num
        per = np.maximum(num, 1.0)
        step = other.mean - self.mean
        error_step = other.error_mean - self.error_mean
        both = self.num * other.num / per
        return ColumnSums(
            num=num,
            mean=self.mean + step * other.num / per,
            squares=self.squares + other.squares + step**2 * both,
            error_mean=self.error_mean + error_step * other.num / per,
            products=self.products + other.products + step * error_step * both,
            error_squares=self.error_squares + other.error_squares,
        )

    @property
    def spread(self) -> Float64:
        """Standard deviation of the reference, [c]."""
        spread: Float64 = np.sqrt(self.squares / np.maximum(self.num, 1.0))
        return spread

    @property
    def error(self) -> Float64:
        """Root mean square of the errors, [c]."""
        error: Float64 = np.sqrt(self.error_squares / np.maximum(self.num, 1.0))
        return error


_NOTHING = np.zeros((1, 0))
NO_SUMS = ColumnSums.of(_NOTHING, _NOTHING, _NOTHING != 0)


@dataclass(frozen=True, kw_only=True)
class ColumnDistance:
    """The worst column of an output, and the size of all of them.

    Attributes:
        error: root mean square error of the worst column, in spreads of that column.
        place: which one.
        gain: how far the slope of the engine's values over the reference's is from 1, on average
            over the columns: rounding leaves it alone, a wrong factor does not.
        num_rows: of the column with fewest.
        eager_error: of eager float32 at the same column, or a tenth of that of its shifted ones
            where that is more; 0 when neither was measured.
    """

    error: float = 0.0
    place: str = ""
    gain: float = 0.0
    num_rows: int = 0
    eager_error: float = 0.0


def _no_bound(eager_ratio: Float64) -> Float64:
    return np.full_like(eager_ratio, np.inf)


class Columns:
    """Collects all samples of one output."""

    def __init__(self, axes: Sequence[int], *, is_double: bool = False) -> None:
        """Look at each index of these axes; of none, at all elements as one column."""
        self._axes = tuple(axes)
        self._rounding = _ROUNDING_OF_DOUBLES if is_double else _ROUNDING
        self._sums: dict[int | None, ColumnSums] = {}

    def add(self, found: Float64, wanted: Float64, keep: NDArray[np.bool_]) -> None:
        """Take the values of one sample into account; those that are no numbers do not count.

        Args:
            found: the engine's output as float64, of any shape that has the axes.
            wanted: the reference's, of the same shape.
            keep: True where an element counts, of the same shape.
        """
        usable = keep & np.isfinite(wanted) & np.isfinite(found)
        for axis in self._axes or (None,):
            arrays = (_by_column(each, axis) for each in (found, wanted, usable))
            sums = ColumnSums.of(*arrays)
            known = self._sums.get(axis)
            self._sums[axis] = known.merged(sums) if known else sums

    def distance(
        self,
        eager: "Columns | None" = None,
        shifted: "Columns | None" = None,
        bound_of: Callable[[Float64], Float64] = _no_bound,
        least: float = 0.0,
    ) -> ColumnDistance:
        """The worst column, of those beyond their bounds if there are any.

        Args:
            eager: a spread within its error is not compared.
            shifted: the same with the master's own roundings shifted.
            bound_of: bounds [c] by what eager errs, [c]: a wide one of one column excuses no other.
            least: spread by which columns are measured that vary by less.
        """
        worst = ColumnDistance()
        worst_rank = (False, 0.0)
        gains = list[Float64]()
        for axis, sums in self._sums.items():
            eager_error = _eager_error(axis, sums, eager, shifted)
            live = is_live(sums, eager_error, self._rounding)
            # The least-squares slope of errors over the reference: about 0 where they only scatter.
            own = live & (sums.spread >= least)
            gains.append(sums.products[own] / sums.squares[own])
            spread = np.where(live, np.maximum(sums.spread, least), 1.0)
            ratio, eager_ratio = (
                np.where(live, e / spread, 0.0) for e in (sums.error, eager_error)
            )
            is_beyond = ratio > bound_of(eager_ratio)
            at = int((ratio * is_beyond if is_beyond.any() else ratio).argmax())
            rank = bool(is_beyond[at]), float(ratio[at])
            if rank <= worst_rank:
                continue
            worst_rank = rank
            worst = ColumnDistance(
                error=float(ratio[at]),
                place="" if axis is None else f"axis {axis}, index {at}",
                num_rows=int(sums.num[live].min()),
                eager_error=float(eager_ratio[at]),
            )
        slopes = np.concatenate([np.zeros(0), *gains])
        gain = float(abs(slopes.mean())) if slopes.size else 0.0
        return ColumnDistance(**(vars(worst) | {"gain": gain}))

    def compared(
        self, eager: "Columns | None", shifted: "Columns | None", least: float
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which columns of the last axis are compared, each [c]: by their own spread, by `least`.

        Args:
            eager: a spread within its error is not compared.
            shifted: the same with the master's own roundings shifted.
            least: spread by which columns are measured that vary by less.
        """
        axis, sums = self.sums()
        live = is_live(sums, _eager_error(axis, sums, eager, shifted), self._rounding)
        return live & (sums.spread >= least), live & (sums.spread < least)

    def errors(self, axis: int | None) -> Float64:
        """Root mean square errors by index, [c]."""
        return self._sums[axis].error

    @property
    def is_begun(self) -> bool:
        """Whether anything was added."""
        return bool(self._sums)

    def sums(self) -> tuple[int | None, ColumnSums]:
        """The last axis with its sums: the vector of most outputs."""
        return list(self._sums.items())[-1]


def _eager_error(
    axis: int | None, sums: ColumnSums, eager: Columns | None, shifted: Columns | None
) -> Float64:
    error = eager.errors(axis) if eager else np.zeros_like(sums.mean)
    # No multiple of what the master's own roundings err is allowed.
    return np.maximum(error, shifted.errors(axis) / _EAGER_FACTOR) if shifted else error


def is_live(
    sums: ColumnSums, eager_error: Float64, rounding: float = _ROUNDING
) -> NDArray[np.bool_]:
    """Which columns vary by more than rounding: the others are left to the norms.

    Args:
        sums: of all samples.
        eager_error: root mean square error of eager float32 by column, [c].
        rounding: spread over size, below which a column is constant.

    Returns:
        True for each index of the axis that is compared on its own scale, [c].
    """
    size = np.sqrt(sums.mean**2 + sums.spread**2)
    floor = np.maximum(rounding * size, _EAGER_FACTOR * eager_error)
    live: NDArray[np.bool_] = (sums.num >= MIN_ROWS) & (sums.spread > floor)
    return live


def column_axes(shape: Sequence[int | str]) -> tuple[int, ...]:
    """The axes whose indices mean the same in every sample: those of a fixed size."""
    return tuple(axis for axis, size in enumerate(shape) if isinstance(size, int) and size > 1)


def _by_column(array: NDArray[Any], axis: int | None) -> NDArray[Any]:
    if axis is None:
        return array.reshape(1, -1)
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
