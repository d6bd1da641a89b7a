"""One output over all samples: strings, ids, and numbers near zero."""

from dataclasses import replace

import numpy as np
import pytest

from compiler_worker.inputs.sampling import SampleVariant
from services.contracts.hardware.kinds import Precision
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Recipe
from tests.unit.compiler_worker.proof.judges import judge, met, normal, sample


def test_strings_are_equal_or_not() -> None:
    words = np.array([["?", "red"]], dtype=object)
    one = judge("batch", 2, datatype="BYTES")
    met(one, words)
    assert one.column_check() is None
    other = np.array([["?", "green"]], dtype=object)
    assert "1 of 2 elements differ" in one.compare(sample(), {"y": other}, {"y": words}).fault


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_few_numbers_of_either_sign_are_measured_by_their_usual_size(
    width: int, precision: Precision
) -> None:
    """An error of half a bound, which of a logit near zero is more than all of it."""
    one = judge("batch", width, precision=precision)
    wanted = normal(400, width)
    wanted[0] = 1e-3
    one.expect(sample(), {"y": wanted})
    noise = normal(400, width, seed=2) * one.bounds.allowed.rel_l2 / 2
    for rows in np.split(np.arange(400), 50):
        found = {"y": (wanted + noise)[rows].astype(np.float32)}
        assert one.compare(sample(), found, {"y": wanted[rows]}).fault == ""
    ten_times = {"y": wanted + 10 * noise.astype(np.float32)}
    assert one.compare(sample(), ten_times, {"y": wanted}).fault


def test_of_probabilities_each_is_its_own_measure() -> None:
    wanted = np.array([[1e-4], [0.9]], np.float32)
    one = judge("batch", 1, precision=Precision.BF16)
    one.expect(sample(), {"y": wanted})
    found = np.array([[2e-4], [0.9]], np.float32)
    assert "rel_l2 1.00e+00 found" in one.compare(sample(), {"y": found}, {"y": wanted}).fault


@pytest.mark.parametrize(
    ("variant", "precision"),
    [(SampleVariant.LARGE, Precision.FP16), (SampleVariant.FULL, Precision.FP32)],
)
def test_the_least_probabilities_are_no_measure_of_their_own(
    variant: SampleVariant, precision: Precision
) -> None:
    """Neither where large values make almost 0 of them, nor to all digits of float32."""
    wanted, share = np.array([[1e-6], [0.9]], np.float32), np.float32(1e-7)
    one = judge("batch", 1, precision=precision)
    one.expect(sample(), {"y": wanted})
    close = {"y": wanted + share}
    assert one.compare(sample(variant), close, {"y": wanted}).fault == ""
    far = {"y": wanted + np.float32(one.bounds.allowed.max_abs)}
    assert one.compare(sample(variant), far, {"y": wanted}).fault


def test_beside_an_offset_each_number_is_its_own_measure() -> None:
    """Values of eight times the size move it by as much as bf16 rounds, and not by three times."""
    wanted = np.full((4, 1), 1_000, np.float32)
    one = judge("batch", 1, precision=Precision.BF16)
    one.expect(sample(), {"y": wanted})
    off = wanted + np.float32(1.05 * 1_000 * one.bounds.allowed.rel_l2)
    assert one.compare(sample(SampleVariant.LARGE), {"y": off}, {"y": wanted}).fault


def test_large_draws_say_nothing_of_the_usual_size() -> None:
    one = judge("batch", 1)
    one.expect(sample(SampleVariant.LARGE), {"y": normal(8, 1) * 1e3})
    assert one.sizes.typical == 0.0
    one.expect(sample(), {"y": np.array([[3.0], [-4.0]], np.float32)})
    assert one.sizes.typical == pytest.approx(12.5**0.5)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("num_wrong", "words"), [(16, ""), (17, "row 5: 17 of 32 elements")])
def test_a_row_of_ids_that_is_mostly_wrong_is_a_fault_among_any_number(
    num_wrong: int, words: str, precision: Precision
) -> None:
    one = judge("batch", 32, datatype="INT64", precision=precision)
    wanted = np.zeros((2_000, 32), np.int64)
    found = wanted.copy()
    found[5, :num_wrong] = 1
    assert words in one.compare(sample(), {"y": found}, {"y": wanted}).fault
    check = one.agreement_check()
    assert check is not None
    assert check.fault == ""


def test_few_ids_are_judged_together_alone() -> None:
    one = judge("batch", 31, datatype="INT64")
    wanted = np.zeros((2_000, 31), np.int64)
    found = wanted.copy()
    found[5] = 1
    assert one.compare(sample(), {"y": found}, {"y": wanted}).fault == ""
    empty = np.zeros((0, 31), np.int64)
    assert one.compare(sample(), {"y": empty}, {"y": empty}).fault == ""


@pytest.mark.parametrize(("num_wrong", "words"), [(4, ""), (5, "batches of 1: 5 of 8 elements")])
def test_a_size_of_batches_that_is_mostly_wrong_is_a_fault_among_any_number(
    num_wrong: int, words: str
) -> None:
    recipe = Recipe(batching=Batching(batch_dim="batch"))
    one = judge("batch", datatype="INT64", precision=Precision.INT8, recipe=recipe)
    for rows, wrong in [(500, 0), *((1, number < num_wrong) for number in range(8))]:
        wanted = np.zeros(rows, np.int64)
        here = replace(sample(), sizes={"batch": rows})
        assert one.compare(here, {"y": wanted + wrong}, {"y": wanted}).fault == ""
    check = one.agreement_check()
    assert check is not None
    assert words in check.fault
    assert bool(check.fault) is bool(words)


def test_a_column_that_eager_float32_cannot_tell_excuses_no_other() -> None:
    """Of three, beside a large one: the second is off as eager is, the third by 3 % of itself."""
    wanted = normal(400, 3) * np.array([1.0, 1e-3, 1e-3], np.float32) + [1e4, 0, 0]
    noise = normal(400, 3, seed=2) * 1e-3
    one = judge("batch", 3)
    eager = {"y": wanted + noise * [0, 5e-3, 0]}
    found = {"y": wanted + noise * [0, 4e-2, 3e-2]}
    one.collect(one.eager, sample(), eager, {"y": wanted})
    one.columns.add(found["y"], wanted, np.ones(wanted.shape, np.bool_))
    check = one.column_check()
    assert check is not None
    assert check.place == "axis 1, index 2"
    assert "the worst column (axis 1, index 2) is off by" in check.fault
