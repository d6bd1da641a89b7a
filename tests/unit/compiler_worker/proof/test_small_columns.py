"""Columns that are nothing beside the others: what is made of them in fp16, and what is a fault."""

from collections.abc import Sequence

import numpy as np
import pytest

from compiler_worker.measures.tolerances import unseen_error
from compiler_worker.proof.output_judge import OutputJudge
from compiler_worker.proof.power import power_check
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Recipe, Tolerance
from tests.unit.compiler_worker.proof.judges import judge, met, normal

ROWS = 400
# The other columns, as of an embedding.
MANY = [0.05] * 15


def judged(
    wanted: Array, found: Array, precision: Precision, recipe: Recipe | None = None
) -> OutputJudge:
    one = judge("batch", wanted.shape[1], precision=precision, recipe=recipe)
    met(one, wanted.astype(np.float32), found.astype(np.float32))
    return one


def fault(one: OutputJudge) -> str:
    check = one.column_check()
    assert check is not None
    return check.fault


def of(scales: Sequence[float]) -> Array:
    return normal(ROWS, len(scales)).astype(np.float64) * scales


@pytest.mark.parametrize(
    ("scales", "becomes", "precision", "is_refused"),
    [
        # Nothing beside the others, and nothing in fp16: 0 is as right as fp16 can be.
        ([*MANY, 1e-32], 0.0, Precision.FP16, False),
        ([*MANY, 1.4e-8], 0.0, Precision.FP16, False),
        # These precisions have a number for it.
        ([*MANY, 1e-32], 0.0, Precision.BF16, True),
        ([*MANY, 1e-32], 0.0, Precision.FP32, True),
        ([*MANY, 1e-32], 0.0, Precision.INT8, True),
        # What is no 0 has to be as little.
        ([*MANY, 1e-32], 1e-9, Precision.FP16, False),
        ([*MANY, 1e-32], 1e-7, Precision.FP16, True),
        ([*MANY, 1e-32], 1.0, Precision.FP16, True),
        # Nothing in fp16, and not nothing beside the others.
        ([1e-9] * 16, 0.0, Precision.FP16, True),
        ([1e-4] * 15 + [1e-8], 0.0, Precision.FP16, True),
        # Little beside the others, and a number of fp16.
        ([1e4] * 15 + [0.5], 0.0, Precision.FP16, True),
        ([1e4] * 15 + [1e-6], 0.0, Precision.FP16, True),
        ([1e8, 0.5], 0.0, Precision.BF16, True),
        ([1e8, 0.5], 0.0, Precision.FP32, True),
        # One large column excuses no other.
        ([1.0] + [1e-8] * 15, 0.0, Precision.FP16, True),
    ],
)
def test_the_last_column_becomes(
    scales: list[float], becomes: float, precision: Precision, is_refused: bool
) -> None:
    wanted = of(scales)
    found = wanted.copy()
    found[:, -1] = becomes * normal(ROWS, seed=3)
    one = judged(wanted, found, precision)
    assert bool(fault(one)) is is_refused
    # A right engine has no fault, and what it may hide is said.
    right = judged(wanted, wanted, precision)
    assert fault(right) == ""
    assert ("1 of 16 columns (index 15)" in right.note) or is_refused
    assert right.note == "" or precision is Precision.FP16


def test_a_few_large_values_excuse_no_column() -> None:
    wanted = of([1e-9] * 16)
    wanted[7, 3] = 1e3
    found = wanted.copy()
    found[:, 0] = 0
    assert "axis 1, index 0" in fault(judged(wanted, found, Precision.FP16))


def test_of_probabilities_the_least_is_compared() -> None:
    """A class that no draw is of: an engine without it would be proven."""
    wanted = np.abs(of([*MANY, 1e-9]))
    found = wanted.copy()
    found[:, -1] = 0
    one = judged(wanted, found, Precision.FP16)
    assert "axis 1, index 15" in fault(one)
    assert one.note == ""


@pytest.mark.parametrize(("scale", "is_refused"), [(1e-9, False), (1e-6, True)])
def test_scores_beside_coordinates_are_compared_where_fp16_has_them(
    scale: float, is_refused: bool
) -> None:
    wanted = np.concatenate([of([300.0] * 4), np.abs(of([scale] * 2))], axis=1)
    found = wanted.copy()
    found[:, 4:] = 0
    one = judged(wanted, found, Precision.FP16)
    assert bool(fault(one)) is is_refused
    assert "2 of 6 columns (index 4, 5) are compared to within 6.0e-08" in one.note


def test_a_looser_bound_of_columns_hides_no_more() -> None:
    wanted = of([*MANY, 1e-32])
    loose = Tolerance(rel_l2=9, max_abs=9, cosine_distance=2, column=0.5)
    recipe = Recipe(tolerances={Precision.FP16: loose})
    for becomes, is_refused in ((4e-8, True), (2e-8, False)):
        found = wanted.copy()
        found[:, -1] = becomes * np.sign(normal(ROWS, seed=3))
        assert bool(fault(judged(wanted, found, Precision.FP16, recipe))) is is_refused


def test_they_are_no_wrong_factor_either() -> None:
    """Of 16 columns that are all right one with slope 0 would be a factor of 6 %."""
    wanted = of([*MANY, 1e-32])
    found = wanted.copy()
    found[:, -1] = 0
    check = judged(wanted, found, Precision.FP16).column_check()
    assert check is not None
    assert check.gain == 0.0
    assert "too large or too small" in fault(judged(wanted, wanted * 1.01, Precision.FP16))


def test_power_is_measured_at_columns_that_are_compared() -> None:
    """Else a fault of that column alone would change nothing, and none of another be tried."""
    wanted = of([*MANY, 1e-32]).astype(np.float32)
    one = judge("batch", 16, precision=Precision.FP16)
    check = power_check(one, met(one, wanted), lambda output, sabotage: True)
    assert check is not None
    assert check.blind == ()
    for name in ("a column zero", "a column's sign flipped"):
        assert name in (*check.refused, *check.tightened)
    assert "a column shifted by a tenth of its spread" in check.tightened + check.refused


def test_so_is_that_of_an_output_with_a_column_that_is_constant() -> None:
    wanted = of(MANY).astype(np.float32)
    wanted[:, 3] = 7 + 1e-9 * wanted[:, 3].astype(np.float64)
    wanted[0, 3] += np.float32(1e-6)
    one = judge("batch", 15, precision=Precision.FP16)
    check = power_check(one, met(one, wanted), lambda output, sabotage: True)
    assert check is not None
    assert "a column shifted by a tenth of its spread" not in check.unchanged


def test_the_error_that_is_never_seen_is_the_less_of_two() -> None:
    assert unseen_error(Precision.FP16, 1e4) == 2.0**-24
    assert unseen_error(Precision.FP16, 1e-3) == pytest.approx(1e-9)
    assert unseen_error(Precision.FP16, 0.0) == 0.0
    assert unseen_error(Precision.BF16, 1e4) < np.finfo(np.float32).tiny
    assert unseen_error(Precision.FP32, 1e4) == np.finfo(np.float32).smallest_subnormal
