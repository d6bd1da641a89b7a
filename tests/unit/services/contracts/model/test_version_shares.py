"""How versions share the requests that name none."""

import sys

import pytest

from services.contracts.model.version_shares import shares_among

LARGEST = sys.float_info.max


@pytest.mark.parametrize(
    ("weights", "versions", "shares"),
    [
        ({}, [], {}),
        ({1: 5.0}, [], {}),
        ({}, [1, 10, 2], {10: 1.0}),
        ({1: 0.0, 3: 1.0}, [1, 2], {2: 1.0}),
        ({1: 1.0, 2: 3.0}, [1, 2, 3], {1: 0.25, 2: 0.75}),
        ({1: 1.0, 2: 3.0}, [1, 3], {1: 1.0}),
        ({1: LARGEST, 2: LARGEST}, [1, 2], {1: 0.5, 2: 0.5}),
    ],
)
def test_shares(weights: dict[int, float], versions: list[int], shares: dict[int, float]) -> None:
    assert shares_among(weights, versions) == pytest.approx(shares)
