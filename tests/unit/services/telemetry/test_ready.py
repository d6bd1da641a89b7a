"""Readiness over a pipe: the line, the death, and the time-out."""

import os

import pytest

from services.contracts.errors import NotReadyError
from services.telemetry.ready import announce_ready, wait_ready


def test_the_parent_gets_the_line() -> None:
    read_fd, write_fd = os.pipe()
    announce_ready(write_fd, {"port": 1})
    assert wait_ready(read_fd, 5, "child") == {"port": 1}


def test_a_child_that_ends_first_is_an_error_at_once() -> None:
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    with pytest.raises(NotReadyError, match="child: ended before it was ready"):
        wait_ready(read_fd, 60, "child")


def test_a_silent_child_is_given_up() -> None:
    read_fd, write_fd = os.pipe()
    with pytest.raises(NotReadyError, match="not ready within"):
        wait_ready(read_fd, 0.01, "child")
    os.close(write_fd)


def test_nobody_waits_for_a_negative_descriptor() -> None:
    announce_ready(-1, {})
