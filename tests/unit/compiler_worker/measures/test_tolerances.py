"""Which bounds apply to an output."""

from dataclasses import replace

import numpy as np
import pytest

from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.measures.distance import Distance
from compiler_worker.measures.tolerances import column_bound, together_for, tolerance_for
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe, Tolerance


def distance(rel_l2: float) -> Distance:
    return Distance(rel_l2=rel_l2, max_abs=rel_l2, cosine_distance=rel_l2**2)


def test_every_precision_has_bounds_and_lower_ones_are_wider() -> None:
    order = (
        Precision.FP32,
        Precision.FP16,
        Precision.BF16,
        Precision.INT8_WEIGHT_ONLY,
        Precision.INT8,
    )
    assert {*order, Precision.FP8} == set(Precision)
    for name in ("rel_l2", "max_abs", "cosine_distance"):
        bounds = [getattr(DEFAULT_TOLERANCES[precision], name) for precision in order]
        assert bounds == sorted(set(bounds))
        assert getattr(DEFAULT_TOLERANCES[Precision.FP8], name) == bounds[-1]


def test_fp32_may_err_ten_times_what_eager_errs() -> None:
    allowed = tolerance_for(Precision.FP32, Recipe(), distance(2e-5))
    assert allowed.rel_l2 == pytest.approx(2e-4)
    assert allowed.cosine_distance == pytest.approx(100 * 4e-10)


def test_an_exact_eager_does_not_tighten_the_bound() -> None:
    assert tolerance_for(Precision.FP32, Recipe(), Distance()) == DEFAULT_TOLERANCES[Precision.FP32]


@pytest.mark.parametrize("error", [0.1, float("inf")])
def test_a_bad_eager_widens_no_further_than_fp16(error: float) -> None:
    allowed = tolerance_for(Precision.FP32, Recipe(), distance(error))
    assert allowed == DEFAULT_TOLERANCES[Precision.FP16]


def test_fp32_may_err_as_the_masters_own_roundings_do_and_no_further_than_int8() -> None:
    fp32 = Precision.FP32
    allowed = tolerance_for(fp32, Recipe(), distance(1e-9), distance(3e-2))
    assert (allowed.rel_l2, allowed.cosine_distance) == (3e-2, pytest.approx(9e-4))
    wide = tolerance_for(fp32, Recipe(), distance(1.0), distance(1.0))
    assert wide == DEFAULT_TOLERANCES[Precision.INT8]
    narrow = tolerance_for(fp32, Recipe(), distance(2e-5), distance(1e-5))
    assert narrow == tolerance_for(fp32, Recipe(), distance(2e-5))


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_other_precisions_have_fixed_bounds(precision: Precision) -> None:
    assert tolerance_for(precision, Recipe(), distance(1.0)) == DEFAULT_TOLERANCES[precision]


def test_the_recipe_wins() -> None:
    own = Tolerance(rel_l2=0.5, max_abs=0.5, cosine_distance=0.5)
    recipe = Recipe(tolerances={Precision.FP32: own})
    assert tolerance_for(Precision.FP32, recipe, distance(1.0)) == own
    assert tolerance_for(Precision.BF16, recipe) == DEFAULT_TOLERANCES[Precision.BF16]


def test_a_recipe_may_ask_for_bounds_by_eager_s_own_error() -> None:
    own = Tolerance(rel_l2=1e-4, max_abs=1e-4, cosine_distance=1e-8, relative_to_eager=3.0)
    recipe = Recipe(tolerances={Precision.FP16: own})
    found = tolerance_for(Precision.FP16, recipe, distance(1e-3))
    assert (found.rel_l2, found.max_abs) == (pytest.approx(3e-3), pytest.approx(3e-3))
    assert found.cosine_distance == pytest.approx(9e-6)
    # Below its own bounds nothing changes, and above the loosest default nothing grows.
    low = tolerance_for(Precision.FP16, recipe, distance(1e-6))
    assert (low.rel_l2, low.max_abs) == (own.rel_l2, own.max_abs)
    assert (
        tolerance_for(Precision.FP16, recipe, distance(1.0)) == DEFAULT_TOLERANCES[Precision.BF16]
    )
    assert tolerance_for(Precision.FP16, recipe) == own


def test_bounds_that_a_recipe_leaves_open_are_as_loose_as_its_others() -> None:
    default = together_for(Precision.BF16, Recipe())
    tight = Tolerance(rel_l2=1e-3, max_abs=1e-3, cosine_distance=1e-6, agreement=1.0)
    found = together_for(Precision.BF16, Recipe(tolerances={Precision.BF16: tight}))
    assert found == replace(default, agreement=1.0)
    loose = Tolerance(rel_l2=4e-2, max_abs=8e-2, cosine_distance=1e-3)
    found = together_for(Precision.BF16, Recipe(tolerances={Precision.BF16: loose}))
    assert (found.column, found.gain) == (pytest.approx(0.4), pytest.approx(0.02))
    assert found.agreement == pytest.approx(0.94)
    looser = loose.model_copy(update={"rel_l2": 0.5})
    found = together_for(Precision.BF16, Recipe(tolerances={Precision.BF16: looser}))
    assert found == together_for(Precision.INT8, Recipe()), "never looser than of int8"


def test_a_column_of_an_fp32_engine_may_err_as_eager_errs() -> None:
    fp32, bf16 = (together_for(each, Recipe()) for each in (Precision.FP32, Precision.BF16))
    errors = np.array([0.0, 5e-3, 1.0])
    bounds = column_bound(fp32, Precision.FP32, errors)
    assert bounds.tolist() == pytest.approx([fp32.column, 5e-2, 0.1])
    assert set(column_bound(bf16, Precision.BF16, errors)) == {bf16.column}


def test_a_recipe_s_own_bound_of_columns_counts_in_fp32_too() -> None:
    wide = Tolerance(rel_l2=1, max_abs=1, cosine_distance=1, column=0.5)
    together = together_for(Precision.FP32, Recipe(tolerances={Precision.FP32: wide}))
    assert set(column_bound(together, Precision.FP32, np.array([0.0, 0.2]))) == {0.5}
