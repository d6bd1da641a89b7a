"""The comparison on which every proof stands: what it measures, what it refuses."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler_worker.measures.distance import INFINITELY_FAR, Distance, compare
from services.contracts.model.recipe import Tolerance

TIGHT = Tolerance(rel_l2=1e-5, max_abs=1e-5, cosine_distance=1e-9)
LOOSE = Tolerance(rel_l2=math.inf, max_abs=math.inf, cosine_distance=math.inf)
RNG = np.random.default_rng(1)
WANTED = RNG.standard_normal((4, 6, 8))


def test_equal_arrays_have_no_distance() -> None:
    result = compare(WANTED.copy(), WANTED, TIGHT)
    assert (result.fault, result.distance) == ("", Distance())


def test_float32_rounding_is_within_the_fp32_bounds() -> None:
    result = compare(WANTED.astype(np.float32), WANTED, TIGHT)
    assert result.fault == ""
    assert 1e-9 < result.distance.rel_l2 < 1e-7


def test_bfloat16_is_compared_as_a_floating_type() -> None:
    result = compare(WANTED.astype(ml_dtypes.bfloat16), WANTED, TIGHT)
    assert 1e-4 < result.distance.rel_l2 < 1e-2
    assert "rel_l2" in result.fault


def test_a_scale_is_seen_by_length_and_not_by_direction() -> None:
    result = compare(WANTED * 1.01, WANTED, TIGHT)
    assert result.distance.rel_l2 == pytest.approx(0.01)
    assert result.distance.cosine_distance < 1e-15
    assert result.fault == (
        "rel_l2 1.00e-02 found, 1.00e-05 allowed; max_abs 1.00e-02 found, 1.00e-05 allowed"
    )


def test_a_turned_vector_is_seen_by_direction() -> None:
    wanted = np.array([[1.0, 0.0]])
    found = np.array([[math.cos(0.1), math.sin(0.1)]])
    result = compare(found, wanted, LOOSE)
    assert result.distance.cosine_distance == pytest.approx(1 - math.cos(0.1))


def test_the_worst_sample_counts_not_the_mean() -> None:
    found = WANTED.copy()
    found[3] *= 2
    assert compare(found, WANTED, TIGHT).distance.rel_l2 == pytest.approx(1.0)
    whole = compare(found, WANTED, TIGHT, has_batch_axis=False).distance.rel_l2
    assert whole < 0.9


def test_positions_that_are_not_valid_are_not_compared() -> None:
    valid = np.ones((4, 6))
    valid[1, 3:] = 0
    found = WANTED.copy()
    found[1, 3:] = np.nan
    assert compare(found, WANTED, TIGHT, valid=valid).fault == ""
    found[1, 2] += 1.0
    assert "rel_l2" in compare(found, WANTED, TIGHT, valid=valid).fault


def test_one_nan_is_enough() -> None:
    found = WANTED.copy()
    found[2, 0, 5] = np.nan
    result = compare(found, WANTED, LOOSE)
    assert result.fault == "1 NaN or Inf values found, 0 allowed"
    assert result.distance.rel_l2 == math.inf


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_an_odd_value_is_right_where_the_reference_has_the_same(odd: float) -> None:
    wanted = WANTED.copy()
    wanted[0, 0, 0] = odd
    assert compare(wanted.copy(), wanted, TIGHT).fault == ""
    assert "NaN or Inf" in compare(WANTED, wanted, TIGHT).fault


def test_a_reference_without_any_number_proves_nothing() -> None:
    nothing = np.full_like(WANTED, np.nan)
    result = compare(nothing.copy(), nothing, LOOSE)
    assert "look at the master's weights" in result.fault
    assert result.distance == INFINITELY_FAR


def test_another_shape_is_a_fault() -> None:
    result = compare(WANTED[:, :5], WANTED, LOOSE)
    assert result.fault == "shape [4, 5, 8] found, [4, 6, 8] wanted"


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_integers_and_bools_must_be_equal(dtype: type) -> None:
    wanted = np.array([[0, 1], [1, 0]], dtype=dtype)
    found = wanted.copy()
    assert compare(found, wanted, LOOSE).fault == ""
    found[1, 1] = 1
    assert compare(found, wanted, LOOSE).fault == "1 of 4 elements differ, 0 allowed"


def test_a_sample_of_zeros_is_measured_against_the_largest() -> None:
    wanted = np.array([[3.0, 4.0], [0.0, 0.0]])
    found = wanted + np.array([[0.0, 0.0], [1e-12, 0.0]])
    assert compare(found, wanted, TIGHT).fault == ""
    assert compare(found + np.array([[0.0, 0.0], [1e-3, 0.0]]), wanted, TIGHT).fault != ""


def test_all_zeros_are_measured_absolutely() -> None:
    wanted = np.zeros((2, 3))
    assert compare(wanted + 1e-6, wanted, TIGHT).fault == ""
    assert "max_abs" in compare(wanted + 1e-3, wanted, TIGHT).fault


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 1)])
def test_small_shapes_are_compared_too(shape: tuple[int, ...]) -> None:
    wanted = np.full(shape, 2.0)
    assert compare(wanted.copy(), wanted, TIGHT).fault == ""
    far = compare(wanted * 1.5, wanted, TIGHT)
    assert bool(far.fault) == bool(wanted.size)


def test_where_nothing_is_valid_nothing_is_equal() -> None:
    """A mask of zeros would pass every engine."""
    nothing = np.zeros(WANTED.shape[:2])
    result = compare(WANTED, WANTED, LOOSE, valid=nothing)
    assert result.fault == "no position is valid: nothing to compare"
    assert result.distance == INFINITELY_FAR


@given(scale=st.floats(1e-30, 1e30), error=st.floats(1e-4, 10.0))
def test_distances_do_not_depend_on_the_unit(scale: float, error: float) -> None:
    found = WANTED * (1 + error)
    one, other = (compare(found * s, WANTED * s, LOOSE).distance for s in (1.0, scale))
    assert one.rel_l2 == pytest.approx(other.rel_l2, rel=1e-9)
    assert one.max_abs == pytest.approx(other.max_abs, rel=1e-9)


def test_strings_are_compared_exactly() -> None:
    wanted = np.array([["a", "", "Ж"]], dtype=object)
    assert compare(wanted.copy(), wanted, TIGHT).fault == ""
    found = np.array([["a", " ", "ж"]], dtype=object)
    fault = compare(found, wanted, LOOSE).fault
    assert fault == "2 of 3 elements differ, 0 allowed; the first: ' ' found, '' wanted"
    mask = np.array([[1, 0, 0]])
    assert compare(found, wanted, TIGHT, valid=mask).fault == ""
