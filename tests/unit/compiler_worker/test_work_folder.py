"""Work folders: nobody's are removed, somebody's are not."""

import os
from pathlib import Path

import pytest

from compiler_worker.work_folder import work_folder


def aged(folder: Path) -> Path:
    """A folder that was made an hour ago, as far as anybody can see."""
    folder.mkdir(exist_ok=True)
    (folder / "half an engine").write_bytes(b"x")
    long_ago = folder.stat().st_mtime - 3600
    os.utime(folder, (long_ago, long_ago))
    return folder


def test_a_folder_is_gone_afterwards_also_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with work_folder(tmp_path / "work", "key-") as folder:
            (folder / "file").write_bytes(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "work").iterdir()) == []


def test_what_a_dead_worker_left_is_removed(tmp_path: Path) -> None:
    abandoned = aged(tmp_path / "key-1")
    with work_folder(tmp_path, "key-") as own:
        assert list(tmp_path.iterdir()) == [own]
    assert not abandoned.exists()


def test_what_a_worker_works_in_is_kept_however_old(tmp_path: Path) -> None:
    with work_folder(tmp_path, "key-") as mine, work_folder(tmp_path, "key-") as other:
        aged(mine)
        with work_folder(tmp_path, "key-") as third:
            assert set(tmp_path.iterdir()) == {mine, other, third}


def test_what_is_new_or_no_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "key-new").mkdir()
    note = tmp_path / "note"
    note.write_text("mine")
    os.utime(note, (0, 0))
    with work_folder(tmp_path, "key-"):
        assert (tmp_path / "key-new").exists()
    assert note.read_text() == "mine"
