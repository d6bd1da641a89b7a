"""A full disk is recognised, whatever a library makes of its error."""

from pathlib import Path

import pytest

from services.contracts.errors import EngineError
from services.contracts.process import disk_room
from services.contracts.process.disk_room import is_of_full_disk


def write_to_full_device() -> None:
    Path("/dev/full").write_bytes(b"x")


def wrapped() -> Exception:
    try:
        try:
            write_to_full_device()
        except OSError as error:
            raise RuntimeError("the compiler failed") from error
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [wrapped(), EngineError("loading: RuntimeError: a.so: No space left on device (28)")],
    ids=["raised for it", "its words"],
)
def test_an_error_is_of_a_full_disk(error: Exception, tmp_path: Path) -> None:
    assert is_of_full_disk(error, tmp_path)


def test_others_are_not(tmp_path: Path) -> None:
    assert not is_of_full_disk(OSError(2, "No such file"), tmp_path / "not" / "there")


def test_whatever_fails_while_a_disk_is_full_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_room, "LEAST_FREE_BYTES", 2**62)
    assert is_of_full_disk(RuntimeError("bus error"), tmp_path / "not" / "there")
