"""What external servers say, as it is quoted."""

import tracemalloc

import pytest

from services.contracts.external.dial import one_line


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ("one\r\n\ttwo  three ", "one two three"),
        ("x" * 300, "x" * 200 + "..."),
        ("\x1b[2J\x00\ud800\u202e", "\ufffd[2J\ufffd\ufffd\ufffd"),
        (None, "None"),
    ],
)
def test_a_message_is_short_in_one_line_and_text(said: object, quoted: str) -> None:
    assert one_line(said) == quoted


def test_no_object_is_made_of_each_word_of_a_long_message() -> None:
    said = "ab " * 300_000
    tracemalloc.start()
    assert len(one_line(said)) == 203
    assert tracemalloc.get_traced_memory()[1] < 300_000
    tracemalloc.stop()
