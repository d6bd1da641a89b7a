"""Limits of a dimension: their order, and what they leave of a range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.contracts.model.dim_limits import DimLimits, limits_fault
from services.contracts.model.recipe import Bucket, DimRange

_SIZES = st.integers(min_value=1, max_value=300)


@given(ends=st.tuples(_SIZES, _SIZES), span=st.tuples(_SIZES, _SIZES, _SIZES))
def test_what_is_left_of_a_range_is_within_the_limits(
    ends: tuple[int, int], span: tuple[int, int, int]
) -> None:
    limits = DimLimits(min=min(ends), max=max(ends))
    low, opt, high = sorted(span)
    left = limits.clipped(DimRange(min=low, opt=opt, max=high))
    assert not limits_fault(Bucket(dims={"n": left}), {"n": limits})
    shared = set(range(low, high + 1)) & set(range(limits.min, limits.max + 1))
    if shared:
        assert (left.min, left.max) == (min(shared), max(shared))
    else:
        assert left.min == left.max


def test_limits_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValidationError, match="expected min <= max, got 3 and 2"):
        DimLimits(min=3, max=2)
