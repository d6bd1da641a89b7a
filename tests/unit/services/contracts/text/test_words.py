"""Times and ratios as people read them."""

import pytest

from services.contracts.text.words import readable_ratio, readable_time


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("2026-11-21T13:59:23.750+00:00", "2026-11-21 13:59:23Z"),
        ("2026-11-21T13:59:23Z", "2026-11-21 13:59:23Z"),
        ("2026-11-22T01:59:23+12:00", "2026-11-21 13:59:23Z"),
        ("2026-11-21T13:59:23", "2026-11-21 13:59:23Z"),
        ("", ""),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_of_one_form(at: str, words: str) -> None:
    assert readable_time(at) == words


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(13.2, "13.20"), (1.254, "1.25"), (0.1, "0.10"), (0.0312, "0.031"), (0.00001, "1e-05")],
)
def test_a_small_ratio_is_never_rounded_to_nothing(ratio: float, words: str) -> None:
    assert readable_ratio(ratio) == words
