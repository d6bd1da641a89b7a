"""Which bounds apply to an output."""

import pytest

from compiler_worker.distance import Distance
from compiler_worker.tolerances import DEFAULT_TOLERANCES, tolerance_for
from services.contracts.kinds import Precision
from services.contracts.recipe import Recipe, Tolerance


def distance(rel_l2: float) -> Distance:
    return Distance(rel_l2=rel_l2, max_abs=rel_l2, cosine_distance=rel_l2**2)


def test_every_precision_has_bounds_and_lower_ones_are_wider() -> None:
    fp32, fp16, bf16 = (DEFAULT_TOLERANCES[p] for p in Precision)
    for name in Tolerance.model_fields:
        assert getattr(fp32, name) < getattr(fp16, name) < getattr(bf16, name)


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


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_other_precisions_have_fixed_bounds(precision: Precision) -> None:
    assert tolerance_for(precision, Recipe(), distance(1.0)) == DEFAULT_TOLERANCES[precision]


def test_the_recipe_wins() -> None:
    own = Tolerance(rel_l2=0.5, max_abs=0.5, cosine_distance=0.5)
    recipe = Recipe(tolerances={Precision.FP32: own})
    assert tolerance_for(Precision.FP32, recipe, distance(1.0)) == own
    assert tolerance_for(Precision.BF16, recipe) == DEFAULT_TOLERANCES[Precision.BF16]
