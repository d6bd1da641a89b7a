"""Durations in messages."""

import pytest

from services.contracts.text.durations import milliseconds


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "0 ms"),
        (0.0000042, "0.0042 ms"),
        (0.00035, "0.35 ms"),
        (0.002, "2 ms"),
        (0.0025, "2.5 ms"),
        (0.00996, "10 ms"),
        (0.0354, "35 ms"),
        (1.5, "1500 ms"),
    ],
)
def test_digits_say_something(duration_s: float, text: str) -> None:
    assert milliseconds(duration_s) == text


def test_figures_that_are_compared_have_the_same_decimals() -> None:
    assert [milliseconds(s, decimals=2) for s in (0.00035, 0.0354)] == ["0.35 ms", "35.40 ms"]
