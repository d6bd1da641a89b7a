"""Columns on their own scales: what is summed up, what is worst, what does not vary."""

import numpy as np
import pytest

from compiler_worker.measures.columns import MIN_ROWS, Columns, ColumnSums, column_axes, is_live
from tests.unit.compiler_worker.proof.judges import normal

WANTED = normal(64, 3).astype(np.float64) * [1, 100, 1e-3] + [0, 1e4, 0]


def columns(found: np.ndarray, wanted: np.ndarray = WANTED, parts: int = 1) -> Columns:
    collected = Columns((1,))
    for few, many in zip(np.split(found, parts), np.split(wanted, parts), strict=True):
        collected.add(few, many, np.ones(many.shape, dtype=np.bool_))
    return collected


@pytest.mark.parametrize("parts", [1, 4, 64])
def test_sums_are_the_same_however_samples_are_divided(parts: int) -> None:
    found = WANTED * 1.01 + [0.1, 3, 0]
    axis, sums = columns(found, parts=parts).sums()
    assert axis == 1
    np.testing.assert_allclose(sums.mean, WANTED.mean(0), rtol=1e-12)
    np.testing.assert_allclose(sums.spread, WANTED.std(0), rtol=1e-9)
    np.testing.assert_allclose(sums.error, np.sqrt(((found - WANTED) ** 2).mean(0)), rtol=1e-12)


def test_the_smallest_column_is_measured_by_its_own_spread() -> None:
    found = WANTED.copy()
    found[:, 2] += 5e-4
    distance = columns(found, parts=4).distance()
    assert distance.place == "axis 1, index 2"
    assert distance.error == pytest.approx(5e-4 / WANTED[:, 2].std())
    assert distance.num_rows == 64


def test_a_factor_is_a_gain_and_noise_is_none() -> None:
    assert columns(WANTED * 1.02).distance().gain == pytest.approx(0.02)
    noisy = WANTED + normal(64, 3, seed=2) * WANTED.std(0) * 0.02
    assert columns(noisy).distance().gain < 0.01
    assert columns(noisy).distance().error == pytest.approx(0.02, rel=0.3)


def test_a_column_that_does_not_vary_is_left_to_the_norms() -> None:
    wanted = np.column_stack([WANTED[:, 0], np.full(64, 7.0), 1e6 + 1e-3 * WANTED[:, 0]])
    distance = columns(wanted + np.array([0, 1, 1]), wanted).distance()
    assert (distance.error, distance.place) == (0.0, "")


def test_nor_does_a_spread_count_that_eager_float32_cannot_tell() -> None:
    found = WANTED + np.array([0, 0, 1e-3])
    eager = columns(WANTED + np.array([0, 0, 2e-4]))
    assert columns(found).distance().error > 0.5
    assert columns(found).distance(eager).error == 0.0


def test_what_the_masters_own_roundings_err_counts_once_and_not_ten_times() -> None:
    shifted = columns(WANTED + np.array([0, 0, 2e-4]))
    distance = columns(WANTED + np.array([0, 0, 1e-4])).distance(None, shifted)
    assert distance.error == pytest.approx(1e-4 / WANTED[:, 2].std())
    assert distance.eager_error == pytest.approx(2e-5 / WANTED[:, 2].std())


@pytest.mark.parametrize(("rows", "is_judged"), [(MIN_ROWS - 1, False), (MIN_ROWS, True)])
def test_few_rows_have_no_spread(rows: int, is_judged: bool) -> None:
    distance = columns(WANTED[:rows] * 2, WANTED[:rows]).distance()
    assert (distance.error > 0) is is_judged


def test_what_is_no_number_or_not_valid_does_not_count() -> None:
    found, wanted = WANTED.copy(), WANTED.copy()
    keep = np.ones(WANTED.shape, dtype=np.bool_)
    found[3], wanted[3] = np.nan, np.inf
    found[5] += 1e9
    keep[5] = False
    collected = Columns((1,))
    collected.add(found, wanted, keep)
    _, sums = collected.sums()
    assert sums.num.tolist() == [62, 62, 62]
    assert collected.distance().error == 0.0


def test_an_output_without_a_fixed_axis_is_one_column() -> None:
    assert column_axes(("batch", "sequence")) == ()
    assert column_axes(("batch", 1, 3, 4)) == (2, 3)
    collected = Columns(())
    collected.add(WANTED * 2, WANTED, np.ones(WANTED.shape, dtype=np.bool_))
    assert collected.sums()[1].num.tolist() == [WANTED.size]
    assert collected.distance().place == ""
    assert collected.distance().error > 0.5


def test_the_spread_of_a_large_mean_keeps_its_digits() -> None:
    wanted = 1e6 + WANTED[:, :1]
    sums = ColumnSums.of(wanted.T, wanted.T, np.ones((1, 64), dtype=np.bool_))
    assert sums.spread == pytest.approx(WANTED[:, 0].std(), rel=1e-6)
    # It is a millionth of its mean: no more than float32 rounds.
    assert is_live(sums, np.zeros(1)).tolist() == [False]
