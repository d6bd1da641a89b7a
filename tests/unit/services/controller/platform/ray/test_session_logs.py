"""What a fleet that ended leaves of its Ray."""

from pathlib import Path

import pytest

from services.controller.platform.ray.session_logs import (
    RAY_LOGS,
    end_sessions,
    link_logs,
    note_session,
)


@pytest.fixture
def sessions(tmp_path: Path) -> list[Path]:
    """Two of a fleet, whose Ray was started again, and one of another fleet."""
    made = [tmp_path / "ray" / f"session_{number}" for number in range(3)]
    for session in made:
        (session / "logs" / "old").mkdir(parents=True)
        (session / "logs" / "raylet.out").write_text(session.name)
    return made


def test_its_own_sessions_are_gone_and_the_last_logs_are_kept(
    sessions: list[Path], tmp_path: Path
) -> None:
    first, last, other = sessions
    latest = first.with_name("session_latest")
    latest.symlink_to(last)
    for session in (first, last):
        link_logs(tmp_path / "run", session / "logs")
        note_session(tmp_path / "run", session)
    end_sessions(tmp_path / "run")
    kept = tmp_path / "run" / RAY_LOGS
    assert not kept.is_symlink()
    assert (kept / "raylet.out").read_text() == last.name
    assert set(first.parent.iterdir()) == {other}
    # The next fleet's take their place.
    link_logs(tmp_path / "run", other / "logs")
    assert kept.readlink() == other / "logs"
    assert [path.name for path in (tmp_path / "run").iterdir()] == [RAY_LOGS]


def test_what_leads_elsewhere_is_left(sessions: list[Path], tmp_path: Path) -> None:
    own, other, _ = sessions
    latest = own.with_name("session_latest")
    latest.symlink_to(other)
    link_logs(tmp_path / "run", other / "logs")
    note_session(tmp_path / "run", own)
    end_sessions(tmp_path / "run")
    assert not own.exists()
    assert latest.readlink() == other
    assert (tmp_path / "run" / RAY_LOGS / "raylet.out").read_text() == other.name


def test_a_failed_removal_is_a_warning_and_is_tried_again(
    sessions: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link_logs(tmp_path / "run", sessions[0] / "logs")
    no_folder = tmp_path / "ray" / "session_file"
    no_folder.write_text("")
    for session in (no_folder, tmp_path / "ray" / "session_gone", sessions[0]):
        note_session(tmp_path / "run", session)
    end_sessions(tmp_path / "run")
    assert not sessions[0].exists()
    (told,) = caplog.messages
    assert told.startswith(f"{no_folder}, of this fleet's Ray, is not removed: ")
    no_folder.unlink()
    end_sessions(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [RAY_LOGS]
    assert len(caplog.messages) == 1
