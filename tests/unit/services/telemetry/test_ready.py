"""Readiness over a pipe: the line, the death, and the time-out."""

import os
import re
from pathlib import Path

import pytest

from services.contracts.errors import NotReadyError
from services.telemetry.child_log import ChildLog
from services.telemetry.ready import announce_ready, wait_ready


def test_the_parent_gets_the_line() -> None:
    read_fd, write_fd = os.pipe()
    announce_ready(write_fd, {"port": 1})
    assert wait_ready(read_fd, 60, "child") == {"port": 1}


def test_a_child_that_ends_first_is_an_error_at_once() -> None:
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    with pytest.raises(NotReadyError, match="child: ended before it was ready; the reason is on"):
        wait_ready(read_fd, 60, "child")


def test_an_end_names_the_log_and_what_it_says_last(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    log = ChildLog(path=tmp_path / "child.log")
    log.path.write_text("ValueError: no such thing\n")
    words = f"child: ended before it was ready: ValueError: no such thing; its log: {log.path}"
    with pytest.raises(NotReadyError, match=re.escape(words)):
        wait_ready(read_fd, 60, "child", log)


def test_an_end_says_when_the_log_cannot_be_written(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    log = ChildLog(path=tmp_path / "child.log")
    log.path.mkdir()
    words = f"it printed nothing, as {log.path} cannot be written: Is a directory"
    with pytest.raises(NotReadyError, match=re.escape(words)):
        wait_ready(read_fd, 60, "child", log)


def test_a_silent_child_is_given_up() -> None:
    read_fd, write_fd = os.pipe()
    with pytest.raises(NotReadyError, match="not ready within"):
        wait_ready(read_fd, 0.01, "child")
    os.close(write_fd)


def test_nobody_waits_for_a_negative_descriptor() -> None:
    announce_ready(-1, {})
