"""Known ways for answers to be wrong, applied to the reference's own answers.

Legend: b = samples of a batch, c = columns (the last axis that is judged), n = all elements.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler_worker.measures.columns import ColumnSums
from services.contracts.kserve.tensors import Array

# Of so many rows one is another's where a few are wrong; a number that no batch divides.
_SELDOM = 50
# Fixed, so that a proof is the same whenever it is repeated.
_SEED = 2_026


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One output of one sample, with what is known of the output over all samples.

    Attributes:
        array: what the reference answered, of any shape.
        axis: whose indices are the columns; None for one column.
        sums: moments of the columns.
        own: [c], True for those that are compared by their own spread.
        has_batch_axis: whether the first axis counts samples.
        share: of the largest sample's elements that this one has.
        seed: another one for each sample.
    """

    array: Array
    axis: int | None
    sums: ColumnSums
    own: NDArray[np.bool_]
    has_batch_axis: bool
    share: float
    seed: int

    def by_column(self, figures: Array) -> Array:
        """Figures of the columns, [c], to broadcast over the array: [1, ..., c, ..., 1]."""
        shape = [1] * self.array.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        return figures.reshape(shape)

    @property
    def weakest(self) -> Array:
        """1 at the column that varies least of those that are compared so, 0 at the others.

        It is of the shape that `by_column` gives.
        """
        spread = self.sums.spread
        is_weakest = np.zeros_like(spread)
        # Of few rows none is.
        varies = self.own if self.own.any() else spread > 0
        is_weakest[np.where(varies, spread, np.inf).argmin()] = 1.0
        return self.by_column(is_weakest)


Sabotage = Callable[[Answers], Array]


def _rows_shuffled(answers: Answers) -> Array:
    return np.roll(answers.array, 1, axis=0) if answers.has_batch_axis else answers.array


def _first_repeated(answers: Answers) -> Array:
    array = answers.array
    is_batch = answers.has_batch_axis and len(array) > 1
    return np.broadcast_to(array[:1], array.shape).copy() if is_batch else array


def _columns_permuted(answers: Answers) -> Array:
    return answers.array if answers.axis is None else np.roll(answers.array, 1, answers.axis)


def _column_negated(answers: Answers) -> Array:
    negated: Array = answers.array * (1 - 2 * answers.weakest)
    return negated


def _column_zero(answers: Answers) -> Array:
    zeroed: Array = answers.array * (1 - answers.weakest)
    return zeroed


def _mean_only(answers: Answers) -> Array:
    return np.zeros_like(answers.array) + answers.by_column(answers.sums.mean)


def _noise(answers: Answers) -> Array:
    drawn = np.random.default_rng([_SEED, answers.seed]).standard_normal(answers.array.shape)
    mean, spread = (answers.by_column(each) for each in (answers.sums.mean, answers.sums.spread))
    return drawn * spread + mean


def _scaled(answers: Answers) -> Array:
    return answers.array * 1.02


def _scaled_more(answers: Answers) -> Array:
    return answers.array * 1.1


def _shifted(answers: Answers) -> Array:
    return answers.array + answers.by_column(answers.sums.spread)


def _column_shifted(answers: Answers) -> Array:
    """One alone, and that which weighs least: norms over all of them do not show it."""
    return answers.array + answers.weakest * answers.by_column(answers.sums.spread) / 10


def _few_rows(answers: Answers) -> Array:
    """As where one id of a table is wrong, or one block of a kernel."""
    array = answers.array
    moved = array[..., None] if answers.axis is None else np.moveaxis(array, answers.axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    # Other rows in each sample: the same ones may be pads in all of them.
    is_wrong = (np.arange(len(rows)) + 17 * answers.seed) % _SELDOM == 0
    spoilt = np.where(is_wrong[:, None], np.roll(rows, 1, axis=0), rows).reshape(moved.shape)
    back: Array = spoilt[..., 0] if answers.axis is None else np.moveaxis(spoilt, -1, answers.axis)
    return back


def _shifted_by_length(answers: Answers) -> Array:
    return answers.array + answers.share * answers.by_column(answers.sums.spread)


def _absolute(answers: Answers) -> Array:
    return np.abs(answers.array)


def _fp16_overflow(answers: Answers) -> Array:
    """The largest hundredth as if it had been computed beyond fp16's range."""
    array = answers.array
    if not array.size:
        return array
    largest = np.quantile(np.abs(array), 0.99)
    return np.where(np.abs(array) >= largest, np.copysign(np.inf, array), array)


def _off_by_one(answers: Answers) -> Array:
    return ~answers.array if answers.array.dtype.kind == "b" else answers.array + 1


def _first_element(answers: Answers) -> Array:
    array = answers.array
    return np.full_like(array, array.flat[0]) if array.size else array


def _random_ids(answers: Answers) -> Array:
    array = answers.array
    return np.random.default_rng([_SEED, answers.seed]).permuted(array.ravel()).reshape(array.shape)


OF_FLOATS: dict[str, Sabotage] = {
    "rows shuffled": _rows_shuffled,
    "first sample repeated": _first_repeated,
    "columns permuted": _columns_permuted,
    "a column's sign flipped": _column_negated,
    "a column zero": _column_zero,
    "mean only": _mean_only,
    "noise of the same scale": _noise,
    "2 % off": _scaled,
    "10 % off": _scaled_more,
    "shifted by one spread": _shifted,
    "a column shifted by a tenth of its spread": _column_shifted,
    "one row in fifty of another sample": _few_rows,
    "shifted by length": _shifted_by_length,
    "absolute values": _absolute,
    "fp16 overflow": _fp16_overflow,
}
OF_INTEGERS: dict[str, Sabotage] = {
    "rows shuffled": _rows_shuffled,
    "first sample repeated": _first_repeated,
    "off by one": _off_by_one,
    "one value everywhere": _first_element,
    "values shuffled": _random_ids,
}
