"""Logs are one JSON object per line, with the fields that were given."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from services.telemetry.logs import REQUEST_ID, configure_logging

logger = logging.getLogger("services.somewhere")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream that takes this process's logs, put back as they were afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    stream = io.StringIO()
    configure_logging("gateway", "info", stream)
    yield stream
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_who_where_and_what(stream: io.StringIO) -> None:
    logger.warning("queue of %s is full", "minilm")
    (line,) = lines(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "process": "gateway",
        "logger": "services.somewhere",
        "message": "queue of minilm is full",
    }


def test_extra_becomes_fields_but_hides_nothing(stream: io.StringIO) -> None:
    logger.info("loaded", extra={"engine": "abc", "level": "forged"})
    (line,) = lines(stream)
    assert (line["engine"], line["level"]) == ("abc", "info")


def test_marks_that_a_library_puts_on_every_record_stay_out(stream: io.StringIO) -> None:
    logger.info("loaded", extra={"_mark_of_a_library": 1, "engine": "abc"})
    (line,) = lines(stream)
    assert "_mark_of_a_library" not in line
    assert line["engine"] == "abc"


def test_the_request_id_of_the_context_is_added(stream: io.StringIO) -> None:
    token = REQUEST_ID.set("r-1")
    logger.info("inside")
    REQUEST_ID.reset(token)
    logger.info("outside")
    inside, outside = lines(stream)
    assert inside["request_id"] == "r-1"
    assert "request_id" not in outside


def test_an_exception_keeps_to_one_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    (line,) = lines(stream)
    assert "ValueError: two\nlines" in line["exception"]


def test_what_json_does_not_know_is_written_as_text(stream: io.StringIO) -> None:
    logger.info("odd", extra={"value": {1}, "größe": "µs"})
    (line,) = lines(stream)
    assert (line["value"], line["größe"]) == ("{1}", "µs")


def test_the_level_holds_and_warnings_are_logged(stream: io.StringIO) -> None:
    logger.debug("too fine")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # captureWarnings replaced showwarning before this block saved it.
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    (line,) = lines(stream)
    assert "old call" in line["message"]
