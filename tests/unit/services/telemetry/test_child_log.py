"""Which line of a child's log says why it ended."""

import json
from pathlib import Path

import pytest

from services.telemetry.child_log import ChildLog


def line(level: str, message: str, **fields: str) -> str:
    return json.dumps({"level": level, "message": message, **fields})


REFUSED = line("error", "cannot serve: WORKERS: got '0'")
TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: no such thing"
COMMAND = json.dumps({"error": {"kind": "NotReadyError", "message": "why\nlast lines of x:"}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (line("info", "listening"), "listening"),
        (f"{REFUSED}\n{line('info', 'stopping')}\n", "cannot serve: WORKERS: got '0'"),
        (TRACEBACK, "ValueError: no such thing"),
        (line("error", "broken", exception=TRACEBACK), "broken: ValueError: no such thing"),
        ("Fleet ...\nerror: no store\nlast lines of controller.log:\n", "no store"),
        (f"{{\n{COMMAND}", "why"),
        ("[1, 2]", "[1, 2]"),
        ("x" * 600, f"{'x' * 500}..."),
    ],
)
def test_the_last_fault_counts_else_the_last_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "child.log"
    path.write_text(text)
    assert ChildLog(path=path).last_words() == words


def test_a_former_run_said_nothing_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    assert ChildLog.from_here(path).last_words() == ""
    path.write_text(REFUSED + "\n")
    log = ChildLog.from_here(path)
    assert log.last_words() == ""
    with path.open("a") as file:
        file.write("SystemExit: 3\n")
    assert log.last_words() == "SystemExit: 3"
