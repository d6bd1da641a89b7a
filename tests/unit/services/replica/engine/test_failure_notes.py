"""Notes on engines that failed: how long they hold, and what cannot be read."""

from pathlib import Path

import pytest

from services.replica.engine.failure_notes import FailureNotes
from tests.unit.services.replica.toy_batcher import Clock

HOUR_S = 3600.0


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000.0)


@pytest.fixture
def notes(tmp_path: Path, clock: Clock) -> FailureNotes:
    return FailureNotes(tmp_path / "failed", clock=clock)


def test_a_note_holds_for_other_processes_and_only_for_a_while(
    tmp_path: Path, notes: FailureNotes, clock: Clock
) -> None:
    assert notes.reason("e") == ""
    notes.add("e", "no memory")
    other = FailureNotes(tmp_path / "failed", clock=clock)
    assert other.reason("e").startswith("no memory (noted on this machine; tried again after 20")
    assert other.reason("another") == ""
    clock.now_s += HOUR_S
    assert other.reason("e") == ""


def test_each_further_failure_holds_twice_as_long_up_to_a_day(
    notes: FailureNotes, clock: Clock
) -> None:
    waits_s = []
    for _ in range(12):
        notes.add("e", "broken")
        began_s = clock.now_s
        while notes.reason("e"):
            clock.now_s += 300.0
        waits_s.append(clock.now_s - began_s)
    assert waits_s[:3] == [600.0, 1200.0, 2400.0]
    assert waits_s[-1] == 24 * HOUR_S


def test_replicas_that_fail_at_once_count_once(notes: FailureNotes, clock: Clock) -> None:
    for _ in range(8):
        notes.add("e", "broken")
    clock.now_s += 600.0
    assert notes.reason("e") == ""


def test_a_damaged_note_is_none(tmp_path: Path, notes: FailureNotes) -> None:
    notes.add("e", "broken")
    (tmp_path / "failed" / "e").write_bytes(b'{"reason": "bro')
    assert notes.reason("e") == ""
    notes.add("e", "broken again")
    assert notes.reason("e").startswith("broken again")


def test_a_folder_that_cannot_be_written_keeps_nobody_from_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    FailureNotes(tmp_path / "file").add("e", "broken")
    assert "failure not recorded" in caplog.text
    FailureNotes(None).add("e", "broken")
    assert FailureNotes(None).reason("e") == ""
