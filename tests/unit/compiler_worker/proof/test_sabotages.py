"""Spoilt copies: each is another answer, of the same shape, and the same whenever it is made."""

import numpy as np
import pytest

from compiler_worker.proof.power import spoilt
from compiler_worker.proof.sabotages import OF_FLOATS, OF_INTEGERS
from tests.unit.compiler_worker.proof.judges import judge, met, normal

FLOATS = normal(6, 5) * np.array([1, 10, 0.1, 1, 1], np.float32) + np.float32(0.5)
IDS = np.arange(30).reshape(6, 5) % 7


def copies(name: str, array: np.ndarray, datatype: str) -> list[np.ndarray]:
    sabotage = {**OF_FLOATS, **OF_INTEGERS}[name]
    if datatype != "FP32":
        sabotage = OF_INTEGERS[name]
    one = judge("batch", 5, datatype=datatype)
    (kept,) = met(one, array)
    return [spoilt(sabotage, one, kept, array.size, seed=0) for _ in range(2)]


@pytest.mark.parametrize("name", list(OF_FLOATS))
def test_floats(name: str) -> None:
    first, again = copies(name, FLOATS, "FP32")
    assert (first.shape, first.dtype) == (FLOATS.shape, FLOATS.dtype)
    np.testing.assert_array_equal(first, again)
    assert (first != FLOATS).any()


@pytest.mark.parametrize("name", list(OF_INTEGERS))
def test_integers(name: str) -> None:
    first, again = copies(name, IDS, "INT64")
    assert (first.shape, first.dtype) == (IDS.shape, IDS.dtype)
    np.testing.assert_array_equal(first, again)
    assert (first != IDS).any()


def test_what_names_a_column_spoils_the_one_that_varies_least() -> None:
    for name, factor in (("a column zero", 0), ("a column's sign flipped", -1)):
        (copy, _) = copies(name, FLOATS, "FP32")
        wanted = FLOATS.copy()
        wanted[:, 2] *= factor
        np.testing.assert_allclose(copy, wanted, rtol=1e-6)


def test_of_few_rows_it_is_that_which_varies_least_of_all() -> None:
    one = judge("batch", 5)
    (kept,) = met(one, FLOATS[:3])
    copy = spoilt(OF_FLOATS["a column zero"], one, kept, 15, seed=0)
    spread = FLOATS[:3].std(0)
    assert (copy == 0).all(axis=0).nonzero()[0].tolist() == [spread.argmin()]


def test_a_longer_sample_is_shifted_more() -> None:
    one = judge("batch", 5)
    (kept,) = met(one, FLOATS)
    sabotage = OF_FLOATS["shifted by length"]
    whole, half = (
        spoilt(sabotage, one, kept, largest, seed=0) for largest in (FLOATS.size, 2 * FLOATS.size)
    )
    np.testing.assert_allclose(whole - FLOATS, 2 * (half - FLOATS), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose((whole - FLOATS).mean(0), FLOATS.std(0), rtol=1e-4)


def test_rows_stay_where_no_axis_counts_them() -> None:
    one = judge(6, 5)
    (kept,) = met(one, FLOATS)
    for name in ("rows shuffled", "first sample repeated"):
        np.testing.assert_array_equal(spoilt(OF_FLOATS[name], one, kept, 30, seed=0), FLOATS)


def test_of_fifty_rows_one_is_another_s_whatever_axis_is_judged() -> None:
    wanted = normal(4, 5, 50)
    one = judge("batch", 5, "length")
    (kept,) = met(one, wanted)
    copy = spoilt(OF_FLOATS["one row in fifty of another sample"], one, kept, 1000, seed=0)
    is_other = (copy != wanted).any(axis=1)
    assert is_other.sum() == 4
    assert is_other[:, 0].all()
    np.testing.assert_array_equal(copy[1, :, 0], wanted[0, :, 49])


def test_nothing_is_spoilt_of_nothing() -> None:
    one = judge("batch", 5)
    met(one, FLOATS)
    (empty,) = met(one, FLOATS[:0])
    for sabotage in OF_FLOATS.values():
        assert spoilt(sabotage, one, empty, 1, seed=0).shape == (0, 5)
