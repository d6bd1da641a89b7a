"""Times, ratios and sizes as people read them."""

import subprocess
import sys

import pytest

from services.contracts.text.words import (
    last_lines,
    readable_ratio,
    readable_size,
    readable_time,
)


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


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1000, "1.0 kB"),
        (40_200, "40.2 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (90_900_000, "90.9 MB"),
        (16_000_000_000, "16.0 GB"),
    ],
)
def test_sizes_are_in_the_largest_unit_that_fits(num_bytes: float, words: str) -> None:
    assert readable_size(num_bytes) == words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f(): open('/', 'w')\nf()", "IsADirectoryError: [Errno 21] Is a directory: '/'"),
        ("import sys; sys.exit('one\\n\\ntwo')", "one | two"),
        ("import sys; sys.exit('\\n'.join('123456'))", "2 | 3 | 4 | 5 | 6"),
        ("import sys; sys.exit(1)", "no words"),
    ],
)
def test_a_process_has_the_last_words_without_the_frames(code: str, words: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert last_lines(done.stderr) == words
