"""Buckets, padding and cutting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.shapes import (
    check_within,
    corner,
    dims_that_may_be_empty,
    shape_at,
    smallest_holding,
    union_of,
    write_padded,
    zeros_at,
)


def bucket(**ends: tuple[int, int]) -> Bucket:
    return Bucket(dims={name: DimRange(min=a, opt=b, max=b) for name, (a, b) in ends.items()})


SMALL = bucket(batch=(1, 4), sequence=(1, 16))
LONG = bucket(batch=(1, 2), sequence=(8, 128))
WIDE = bucket(batch=(4, 32), sequence=(1, 16))
ALL = (WIDE, LONG, SMALL)


def test_the_union_is_the_box_around_all_buckets() -> None:
    union = union_of(ALL)
    assert (union["batch"].min, union["batch"].max) == (1, 32)
    assert (union["sequence"].min, union["sequence"].max) == (1, 128)
    assert union_of(()) == {}


@pytest.mark.parametrize(
    ("sizes", "index"),
    [
        ({"batch": 1, "sequence": 1}, 2),
        ({"batch": 4, "sequence": 16}, 2),
        ({"batch": 5, "sequence": 2}, 0),
        ({"batch": 2, "sequence": 17}, 1),
        ({"batch": 2, "sequence": 12}, 2),
    ],
)
def test_the_cheapest_bucket_that_holds_a_shape_is_chosen(
    sizes: dict[str, int], index: int
) -> None:
    assert smallest_holding(ALL, sizes) == index


@pytest.mark.parametrize("sizes", [{"batch": 33, "sequence": 1}, {"batch": 3, "sequence": 17}])
def test_a_shape_outside_every_bucket_is_refused_with_all_of_them(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="batch 4..32, sequence 1..16 or batch 1..2"):
        smallest_holding(ALL, sizes)


def test_a_bucket_holds_what_is_empty_where_it_begins_there() -> None:
    ragged, full = bucket(batch=(1, 4), boxes=(0, 16)), bucket(batch=(1, 4), boxes=(1, 8))
    assert smallest_holding((full, ragged), {"batch": 2, "boxes": 0}) == 1
    assert smallest_holding((full, ragged), {"batch": 2, "boxes": 1}) == 0
    assert dims_that_may_be_empty((full, ragged)) == {"boxes"}
    with pytest.raises(InvalidRequestError):
        smallest_holding((full,), {"batch": 2, "boxes": 0})


def test_a_static_model_has_one_bucket_without_dimensions() -> None:
    assert smallest_holding((Bucket(dims={}),), {}) == 0


def test_sizes_outside_a_box_are_refused() -> None:
    box = union_of((SMALL,))
    check_within(box, {"batch": 4, "sequence": 16})
    with pytest.raises(InvalidRequestError, match="dimension 'batch' is 5: .* batch 1..4"):
        check_within(box, {"batch": 5, "sequence": 1})


SPEC = TensorSpec(name="x", datatype="FP32", shape=("batch", 3, "sequence"))


def test_shapes_and_zeros_at_given_sizes() -> None:
    sizes = {"batch": 2, "sequence": 5}
    assert shape_at(SPEC, sizes) == (2, 3, 5)
    zeros = zeros_at(SPEC, sizes)
    assert zeros.dtype == np.float32
    assert not zeros.any()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_padding_then_cutting_gives_the_array_back(
    a: int, b: int, more_a: int, more_b: int
) -> None:
    source = np.random.default_rng(0).standard_normal((a, b)).astype(np.float32)
    target = np.full((a + more_a, b + more_b), 7.0, np.float32)
    write_padded(target, source, pad=-1.0)
    np.testing.assert_array_equal(target[corner(source.shape)], source)
    assert (target == -1.0).sum() == target.size - source.size


def test_what_an_earlier_request_left_is_overwritten() -> None:
    target = np.ones((2, 2), np.int64)
    write_padded(target, np.full((1, 2), 5), pad=0)
    np.testing.assert_array_equal(target, [[5, 5], [0, 0]])
