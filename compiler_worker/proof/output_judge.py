"""One output of an engine, of any shape, over all samples: each alone, then all together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler_worker.inputs.sampling import Sample, is_floating, is_integer
from compiler_worker.measures.answer_sizes import Sizes
from compiler_worker.measures.columns import (
    NO_SUMS,
    ColumnDistance,
    Columns,
    ColumnSums,
    Float64,
    column_axes,
)
from compiler_worker.measures.comparison import compare_output, compared_in
from compiler_worker.measures.default_tolerances import Together
from compiler_worker.measures.distance import Comparison, Distance
from compiler_worker.measures.tolerances import column_bound, unseen_error
from compiler_worker.proof.id_values import IdValues
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Recipe, Tolerance
from services.contracts.selection.proof_checks import AgreementCheck, ColumnCheck

_Arrays = Mapping[str, Array]
# Of so many integers of one row most are right, however coarse the engine: rounding moves a few.
_MANY = 32
# Of a single number's usual size `distance` makes 3.3 times: of a large offset it is all of that.
_LITTLE = 0.3
# Indices of columns in a note.
_SHOWN = 5
# Of so many of all calls of one size: an engine may be wrong at that alone.
_SOME = 8


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one output of an engine is judged by.

    Attributes:
        allowed: of each sample.
        together: of all samples.
        ids: recognises ties of integers; None compares them as they are.
    """

    spec: TensorSpec
    recipe: Recipe
    precision: Precision
    allowed: Tolerance
    together: Together
    ids: IdValues | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the output holds integers or booleans."""
        return is_integer(self.spec)

    @property
    def is_floating(self) -> bool:
        """Whether it holds floats: strings are neither."""
        return is_floating(self.spec)

    def has_columns(self, sample: Sample) -> bool:
        """Whether a sample's answers count in the columns: numbers of the usual size."""
        return self.is_floating and not sample.variant.is_extreme

    def columns(self) -> Columns:
        """A collection of this output's columns, with nothing in it."""
        return Columns(column_axes(self.spec.shape), is_double=self.spec.datatype == "FP64")


@dataclass(kw_only=True)
class OutputJudge:
    """Collects one output, sample by sample.

    Attributes:
        eager: what eager float32 answered, collected beside it.
        shifted: the same with the master's own roundings shifted.
        sizes: how large the reference's answers are.
        num_wanted: elements of all the reference's answers.
        by_rows: of integers, how many are wrong and how many there are, by rows of a call.
    """

    bounds: Bounds
    eager: Columns
    shifted: Columns
    sizes: Sizes = field(default_factory=Sizes)
    columns: Columns = field(init=False)
    num_wanted: int = 0
    num_elements: int = 0
    num_equal: int = 0
    by_rows: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with no sample."""
        self.columns = self.bounds.columns()

    @classmethod
    def of(cls, bounds: Bounds) -> "OutputJudge":
        """A judge without samples."""
        return cls(bounds=bounds, eager=bounds.columns(), shifted=bounds.columns())

    def expect(self, sample: Sample, wanted: _Arrays) -> None:
        """Learn from the reference's answer how large answers are, before any is compared."""
        self.num_wanted += wanted[self.bounds.spec.name].size
        if self.bounds.has_columns(sample):
            _, array, keep = _values(self.bounds, sample, wanted, wanted)
            self.sizes.add(array[keep & np.isfinite(array)])

    def typical(self, sample: Sample) -> float:
        """The size by which smaller elements are measured; 0 where each is its own measure.

        Probabilities and amounts are, though not to all digits of float32 (ONNX Runtime computes
        sigmoids to a part of 1), nor where extreme values make almost 0 of them.
        """
        if self.bounds.precision is Precision.FP32 or not self.sizes.is_of_one_sign:
            return self.sizes.typical
        return _LITTLE * self.sizes.typical if sample.variant.is_extreme else 0.0

    def compare(self, sample: Sample, found: _Arrays, wanted: _Arrays) -> Comparison:
        """Compare one answer with its reference, and collect what all samples are judged by.

        Args:
            sample: has inputs and sizes.
            found: the engine's outputs by name.
            wanted: the reference's.
        """
        bounds = self.bounds
        result = compare_output(
            bounds.spec,
            bounds.recipe,
            sample.inputs,
            found,
            wanted,
            bounds.allowed,
            self.typical(sample),
        )
        if bounds.is_exact:
            return self._meet_integers(sample, found, wanted, result)
        if bounds.has_columns(sample) and result.distance.rel_l2 < np.inf:
            self.columns.add(*_values(bounds, sample, found, wanted))
        return result

    def collect(self, columns: Columns, sample: Sample, found: _Arrays, wanted: _Arrays) -> None:
        """Add an answer of eager float32 to its columns.

        Args:
            columns: `eager` or `shifted`.
            sample: has inputs and sizes.
            found: outputs of eager float32 by name.
            wanted: the reference's.
        """
        if self.bounds.has_columns(sample):
            columns.add(*_values(self.bounds, sample, found, wanted))

    def _meet_integers(
        self, sample: Sample, found: _Arrays, wanted: _Arrays, result: Comparison
    ) -> Comparison:
        # Missing, or of another type or shape: there are no elements to count.
        if result.fault and not result.num_differing:
            return result
        bounds = self.bounds
        name = self.bounds.spec.name
        keep = compared_in(bounds.spec, bounds.recipe, sample.inputs, wanted[name])
        differs = (found[name] != wanted[name]) & keep
        if differs.any() and bounds.ids is not None:
            differs &= ~bounds.ids.ties(
                name, sample.inputs, found[name], wanted[name], bounds.allowed
            )
        num_wrong = int(differs.sum())
        num = int(keep.sum())
        self.num_elements += num
        self.num_equal += num - num_wrong
        rows = sample.sizes.get(bounds.recipe.batching.batch_dim or "", 1)
        wrong_before, num_before = self.by_rows.get(rows, (0, 0))
        self.by_rows[rows] = wrong_before + num_wrong, num_before + num
        return Comparison(distance=Distance(), fault=_row_fault(bounds, differs, keep))

    def moments(self) -> tuple[int | None, ColumnSums, NDArray[np.bool_]]:
        """The reference's moments along the output's last fixed axis; of integers none.

        The last, [columns], are True for those that are compared by their own spread.
        """
        if not self.columns.is_begun:
            return None, NO_SUMS, NO_SUMS.num > 0
        own, _ = self.columns.compared(*self._plain, self._least_spread)
        return *self.columns.sums(), own

    @property
    def note(self) -> str:
        """Which columns may be off by all that they vary, "" where none may."""
        if not self.columns.is_begun:
            return ""
        _, small = self.columns.compared(*self._plain, self._least_spread)
        if not small.any():
            return ""
        first = ", ".join(map(str, np.flatnonzero(small)[:_SHOWN]))
        return (
            f"output '{self.bounds.spec.name}': {small.sum()} of {small.size} columns (index "
            f"{first}) are compared to within {self._unseen:.1e}, as {self.bounds.precision} has "
            "no numbers for less, and float32 is off by as much in all others"
        )

    @property
    def _plain(self) -> tuple[Columns | None, Columns | None]:
        eager, shifted = (own if own.is_begun else None for own in (self.eager, self.shifted))
        return eager, shifted

    @property
    def _least_spread(self) -> float:
        """The spread of which the bound of columns is an error that is never seen."""
        return self._unseen / self.bounds.together.column

    @property
    def _unseen(self) -> float:
        # Of one sign, as probabilities and amounts are, each is its own measure.
        usual = 0.0 if self.sizes.is_of_one_sign else self.sizes.middle
        return unseen_error(self.bounds.precision, usual)

    @property
    def emptiness(self) -> str:
        """Why nothing was compared of an output that need not be empty, "" when something was."""
        spec = self.bounds.spec
        if self.num_wanted or 0 in spec.shape:
            return ""
        return (
            f"output '{spec.name}' is empty at every sample: nothing of it was compared; give "
            "samples at which it is not (models add --samples FILE.npz)"
        )

    @property
    def fault(self) -> str:
        """What all samples together are beyond, "" when within bounds."""
        check = self.agreement_check() or self.column_check()
        return check.fault if check else ""

    def is_within(self, noticed: float) -> bool:
        """Whether what is off is too little to count: no integer, no column by more than this."""
        if agreement := self.agreement_check():
            return agreement.share == 1
        column = self.column_check()
        return column is None or (column.column < noticed and column.gain < noticed)

    def is_farther_than(self, other: "OutputJudge", factor: float) -> bool:
        """Whether these answers are more than so many times as far off as others are."""
        if (mine := self.agreement_check()) and (others := other.agreement_check()):
            return 1 - mine.share > factor * (1 - others.share)
        here = self.column_check()
        there = other.column_check()
        if here is None or there is None:
            return False
        return here.column > factor * there.column or here.gain > factor * there.gain

    def column_check(self) -> ColumnCheck | None:
        """The check of all samples of an output of floats together; None of others."""
        allowed = self.bounds.together
        if self.bounds.is_exact or not self.columns.is_begun:
            return None
        bound_of = partial(column_bound, allowed, self.bounds.precision)
        eager, shifted = self._plain
        distance = self.columns.distance(eager, shifted, bound_of, self._least_spread)
        bound = float(bound_of(np.array(distance.eager_error)))
        # Where eager's own error widens the bound of columns, it has moved the slope as well.
        gain_bound = allowed.gain * bound / allowed.column
        return ColumnCheck(
            output=self.bounds.spec.name,
            column=distance.error,
            column_bound=bound,
            place=distance.place,
            gain=distance.gain,
            gain_bound=gain_bound,
            num_rows=distance.num_rows,
            fault=_column_fault(distance, bound, gain_bound),
        )

    def agreement_check(self) -> AgreementCheck | None:
        """How many integers are as they should be; None of other outputs."""
        bound = self.bounds.together.agreement
        if not self.bounds.is_exact or not self.num_elements:
            return None
        share = self.num_equal / self.num_elements
        num_wrong = self.num_elements - self.num_equal
        words = (
            f"{num_wrong} of {self.num_elements} elements differ: agreement {share:.4f} found, "
            f"{bound:.4f} wanted"
        )
        return AgreementCheck(
            output=self.bounds.spec.name,
            share=share,
            bound=bound,
            num_elements=self.num_elements,
            fault=words if share < bound else self._rows_fault(),
        )

    def _rows_fault(self) -> str:
        for rows, (num_wrong, num) in sorted(self.by_rows.items()):
            if num >= _SOME and 2 * num_wrong > num:
                words = f"{num_wrong} of {num} elements differ, at most half allowed"
                return f"batches of {rows}: {words}"
        return ""


def _values(
    bounds: Bounds, sample: Sample, found: _Arrays, wanted: _Arrays
) -> tuple[Float64, Float64, NDArray[np.bool_]]:
    name = bounds.spec.name
    keep = compared_in(bounds.spec, bounds.recipe, sample.inputs, wanted[name])
    return found[name].astype(np.float64), wanted[name].astype(np.float64), keep


def _row_fault(bounds: Bounds, differs: NDArray[np.bool_], keep: NDArray[np.bool_]) -> str:
    """A row that is mostly wrong, in words; a share over all samples does not show it."""
    shape = bounds.spec.shape
    has_rows = bool(shape) and shape[0] == bounds.recipe.batching.batch_dim
    num_rows = len(differs) if has_rows else 1
    wrong, num = (np.count_nonzero(a.reshape(num_rows or 1, -1), axis=1) for a in (differs, keep))
    for row in np.flatnonzero((num >= _MANY) & (2 * wrong > num))[:1]:
        return f"row {row}: {wrong[row]} of {num[row]} elements differ, at most half allowed"
    return ""


def _column_fault(distance: ColumnDistance, bound: float, gain_bound: float) -> str:
    faults = []
    # Not `>`: an error that is NaN is beyond every bound.
    if not distance.error <= bound:
        place = f" ({distance.place})" if distance.place else ""
        faults.append(
            f"the worst column{place} is off by {distance.error:.2e} of its own spread, "
            f"{bound:.2e} allowed"
        )
    if not distance.gain <= gain_bound:
        faults.append(
            f"values are {distance.gain:.2e} too large or too small on average, "
            f"{gain_bound:.2e} allowed"
        )
    return "; ".join(faults)
