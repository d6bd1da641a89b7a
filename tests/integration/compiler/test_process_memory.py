"""What a child may take of memory, and whether it is at fault when it is ended for it."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from compiler_worker import host_memory
from compiler_worker.children.process import ChildLimits
from tests.integration.compiler.child_script import RunScript, events, result, run_script

__all__ = ["events", "run_script"]  # fixtures


def test_a_greedy_child_is_ended(run_script: RunScript) -> None:
    limits = ChildLimits(time_s=60, memory_bytes=150 * 2**20, time_setting="SMELT_TIME")
    outcome = run_script(
        """
        hoard = bytearray(os.urandom(2**20)) * 300
        signal.pause()
        """,
        limits,
    )
    assert "0.15 allowed; raise SMELT_MEMORY_LIMIT_GIB" in outcome.failure
    assert outcome.peak_memory_bytes > 150 * 2**20


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Puts the worker into a container with so many MiB, of which others hold so many."""

    def put(total: int, held: int) -> None:
        for name, text in (
            ("memory.max", f"{total << 20}"),
            ("memory.current", f"{held << 20}"),
            ("memory.stat", "inactive_file 0"),
        ):
            (tmp_path / name).write_text(text)

    group = replace(host_memory.CONTROL_GROUPS[0], folder=tmp_path)
    monkeypatch.setattr(host_memory, "CONTROL_GROUPS", (group,))
    return put


LEFT = ChildLimits(time_s=60, memory_bytes=None, time_setting="SMELT_TIME")
GROWING = """
    enter("build")
    hoard = bytearray(os.urandom(2**20)) * 300
    signal.pause()
"""


def test_a_child_that_others_leave_too_little_is_ended_and_not_at_fault(
    run_script: RunScript, room: Callable[[int, int], None]
) -> None:
    room(4096, 4096 - 50)
    outcome = run_script(GROWING, LEFT)
    assert "allowed to one of 1 builds, of 0." in outcome.failure
    assert "that others leave of 4.00; free memory on this host" in outcome.failure
    assert not outcome.is_counted


def test_a_child_that_takes_all_there_is_is_at_fault(
    run_script: RunScript, room: Callable[[int, int], None]
) -> None:
    room(50, 0)
    outcome = run_script(GROWING, LEFT)
    assert "; raise SMELT_MEMORY_LIMIT_GIB if it needs more" in outcome.failure
    assert outcome.is_counted


def test_what_becomes_free_while_a_child_works_is_there_for_it(
    run_script: RunScript, room: Callable[[int, int], None], tmp_path: Path
) -> None:
    room(4096, 4096)
    looked = tmp_path / "looked"
    os.mkfifo(looked)
    looks = iter([lambda: room(4096, 0), lambda: looked.write_text("")])

    def look() -> str:
        for step in islice(looks, 1):
            step()
        return ""

    body = f"Path({str(looked)!r}).read_text()\ngive('r')"
    outcome = run_script(body, replace(LEFT, stop_reason=look))
    assert (outcome.result, outcome.failure) == (result("r"), "")


@pytest.mark.parametrize(("held", "is_counted"), [(0, True), (4000, False)])
def test_a_child_that_the_kernel_ends_is_at_fault_where_it_had_enough(
    run_script: RunScript, room: Callable[[int, int], None], held: int, *, is_counted: bool
) -> None:
    room(4096, held)
    outcome = run_script("os.kill(os.getpid(), signal.SIGKILL)", LEFT)
    assert "as the kernel does" in outcome.failure
    assert outcome.is_counted == is_counted
