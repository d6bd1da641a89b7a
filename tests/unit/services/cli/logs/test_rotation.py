"""Logs of processes that hold their descriptor: bounded, and nothing of them is lost."""

import os
from pathlib import Path

from services.cli.logs.log_files import LogFile
from services.cli.logs.log_lines import LogReader
from services.cli.logs.rotation import bound, older_part
from services.telemetry.child_log import ChildLog


def test_a_large_log_is_emptied_below_its_writer_and_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    log, child = LogFile(component="gateway", path=path), ChildLog.from_here(path)
    follower = LogReader()
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def new(reader: LogReader) -> list[str]:
        return [line.text for line in reader.read([log])]

    os.write(writer, b"first\n")
    assert new(follower) == ["first"]
    bound(path, most_bytes=9)
    assert not older_part(path).exists()
    os.write(writer, b"second\nthi")
    bound(path, most_bytes=9)
    assert path.stat().st_size == 0
    assert new(follower) == ["second"]
    os.write(writer, b"rd\nfourth\n")
    assert new(follower) == ["third", "fourth"]
    assert new(LogReader()) == ["first", "second", "third", "fourth"]
    assert ChildLog(path=path, begins_at_byte=16).last_words() == "fourth"
    assert child.last_words() == "fourth"
    bound(path, most_bytes=9)
    os.write(writer, b"fifth\n")
    os.close(writer)
    assert new(follower) == ["fifth"]
    assert older_part(path).read_bytes() == b"rd\nfourth\n"


def test_one_that_cannot_be_copied_keeps_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    path.write_text("what it says\n")
    older_part(path).mkdir()
    bound(path, most_bytes=1)
    assert path.read_text() == "what it says\n"
