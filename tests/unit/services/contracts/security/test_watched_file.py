"""When a file counts as changed."""

import logging
from pathlib import Path

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.security.watched_file import Complaint, WatchedFile, WatchedFiles


class Clock:
    """Seconds that a test moves."""

    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("1")
    return tmp_path / "secret"


def test_a_replaced_file_has_changed_until_it_is_read(path: Path) -> None:
    clock = Clock()
    file = WatchedFile(path, period_s=1, clock=clock)
    assert file.read() == b"1"
    assert not file.has_changed()
    newer = path.with_name("newer")
    newer.write_text("2")
    newer.replace(path)
    assert not file.has_changed(), "looked at again within the period"
    clock.now_s += 1
    assert file.has_changed()
    assert file.read() == b"2"
    clock.now_s += 1
    assert not file.has_changed()


def test_a_link_that_is_turned_is_a_change(path: Path, tmp_path: Path) -> None:
    clock = Clock()
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(path)
    file = WatchedFile(link, period_s=1, clock=clock)
    file.read()
    other.write_text("1")
    turned = tmp_path / "turned"
    turned.symlink_to(other)
    turned.replace(link)
    clock.now_s += 1
    assert file.has_changed()


def test_a_file_that_is_gone_has_not_changed(path: Path) -> None:
    clock = Clock()
    file = WatchedFile(path, clock=clock)
    file.read()
    path.unlink()
    clock.now_s += 10
    assert not file.has_changed()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_file_that_could_not_be_read_has_changed_until_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """Neither chmod nor a descriptor that is free again shows in what is looked at."""
    file = WatchedFile(path, period_s=0)
    file.read()
    if is_new:
        path.write_text("of another size")
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", refuse)
        for _ in range(2):
            assert file.has_changed() is is_new
            with pytest.raises(PermissionError):
                file.read()
            is_new = True
    assert file.has_changed()
    assert file.read() == path.read_bytes()
    assert not file.has_changed()


def refuse(_: Path) -> bytes:
    raise PermissionError("not now")


def test_a_complaint_is_made_once_until_it_is_another_or_withdrawn() -> None:
    said: list[str] = []
    complaint = Complaint(said.append)
    for text in ("a", "a", "b", "a"):
        complaint.make(text)
    complaint.withdraw()
    complaint.make("a")
    assert said == ["a", "b", "a", "a"]


def test_files_of_which_one_has_changed_are_read_until_they_can_be_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other, taken, why_not = path.with_name("other"), [], "no descriptor"
    other.write_text("1")
    files = WatchedFiles((path, other), 0, "the pair", logging.getLogger("of the pair"))

    def take() -> None:
        read = [file.read() for file in files.all]
        if why_not:
            raise InvalidRequestError(why_not)
        taken.append(read)

    with pytest.raises(InvalidRequestError):
        take()
    for newer in ("22", "333"):
        path.write_text(newer)
        for _ in range(3):
            files.renew(take)
        assert not taken
        # Nothing of the files shows that it is over.
        why_not = ""
        for _ in range(3):
            files.renew(take)
        assert taken.pop() == [newer.encode(), b"1"]
        why_not = "no descriptor"
    messages = ["the pair stays the previous one: no descriptor", "the pair was read again"]
    assert [record.getMessage() for record in caplog.records] == messages * 2
    assert {record.name for record in caplog.records} == {"of the pair"}
