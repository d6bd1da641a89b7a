"""What people read: words in brackets are words, never markup; how far long work has come."""

import io
import json
import math
import re
import shlex
import threading
import time

import pytest
from rich.console import Console

from services.cli.output import progress
from services.cli.output import show as output
from services.cli.output.progress import StepLine, Steps
from services.contracts.text.text_table import Table

BRACKETED = "cannot open [/usr/lib/x.so]: expected [batch, 4]"


def test_a_table_shows_words_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(None, [Table("t", ("reason",), [(BRACKETED,)])])
    assert BRACKETED in capsys.readouterr().out


def test_an_error_shows_words_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error(BRACKETED)
    assert capsys.readouterr().err == f"error: {BRACKETED}\n"


def test_json_has_null_where_it_has_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"far": [math.inf, -math.inf, 1.5], "speed": {"mean": math.nan, "Größe": 2}}
    with output.output_form(as_json=True):
        output.show(document, [])
        output.show_entry(document, "")
    both = capsys.readouterr().out
    whole, entry = both[: both.index("\n}") + 2], both.splitlines()[-1]
    assert json.loads(whole, parse_constant=pytest.fail) == json.loads(entry)
    assert entry == '{"far": [null, null, 1.5], "speed": {"mean": null, "Größe": 2}}'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_folded_on_a_terminal_alone_and_paths_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/home/{'x' * 90}"
    monkeypatch.setenv("COLUMNS", "80")
    output.print_line(f"it is in {path}", is_folded=True)
    assert capsys.readouterr().out == f"it is in {path}\n"
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    output.print_line(f"it is in {path}", is_folded=True)
    assert terminal.getvalue() == f"it is in\n    {path}\n"


WORDS = (
    "no fleet runs here, so that nobody knows what is served at this moment; start one: smelt up "
    "--detach (it returns once it serves); or else: .venv/bin/python -m compiler_worker plan m"
)


@pytest.mark.parametrize("is_wide", [False, True])
def test_prose_is_folded_and_commands_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, is_wide: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    with output.output_form(is_wide=is_wide):
        output.show(None, [WORDS])
    told = terminal.getvalue().splitlines()
    assert (len(told) == 1) is is_wide
    assert " ".join(line.strip() for line in told) == WORDS
    for command in ("smelt up --detach ", ".venv/bin/python -m compiler_worker plan m"):
        assert any(command in f"{line} " for line in told)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "ask: smelt infer m --input 'a=[[1, 2]]' --input 'b=[[3, 4]] --c' --version=1",
            "ask: smelt infer m --input 'a=[[1, 2]]' \\\n    --input 'b=[[3, 4]] --c' --version=1",
        ),
        ("  smelt infer m " + 9 * "--input x=@x.npy ", None),
        (
            "  python -c 'import numpy as np; np.save(1, np.ones((1, 1))); np.save(2, 3)'",
            "  python -c 'import numpy as np; np.save(1, np.ones((1, 1))); np.save(2, 3)'",
        ),
        (
            "a folder: pip install optimum[onnx], then optimum-cli export onnx m, and add it",
            "a folder: pip install optimum[onnx], then\n    optimum-cli export onnx m, and add it",
        ),
        (
            "smelt infer m: give each input by --input NAME=@FILE.npy or as text",
            "smelt infer m: give each input by --input NAME=@FILE.npy or\n    as text",
        ),
    ],
)
def test_a_long_command_goes_on_as_a_shell_reads_it(
    monkeypatch: pytest.MonkeyPatch, line: str, told: str | None
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    output.print_line(line, is_folded=True)
    assert told in (None, terminal.getvalue().removesuffix("\n"))
    if "'b=[[" in line or told is None:
        command = line.removeprefix("ask: ")
        pasted = terminal.getvalue().removeprefix("ask: ")
        assert shlex.split(pasted.replace("\\\n", "")) == shlex.split(command)
        assert max(map(len, terminal.getvalue().splitlines())) <= 60


def test_an_error_that_begins_with_a_long_command_has_one_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    told = io.StringIO()
    terminal = Console(file=told, force_terminal=True, color_system=None, width=60)
    monkeypatch.setattr(output, "error_console", lambda: terminal)
    output.print_error(f"smelt infer {'m' * 60}: give each input by --input NAME=@FILE.npy")
    assert told.getvalue().count("error:") == 1
    output.print_error("short")
    assert told.getvalue().endswith("\nerror: short\n")


def test_a_long_detail_is_cut_and_the_time_before_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = io.StringIO()
    terminal = Console(file=told, force_terminal=True, color_system=None, width=60)
    monkeypatch.setattr("services.cli.output.progress.error_console", lambda: terminal)
    with Steps(is_quiet=False).step("Model m") as line:
        line.begin(3, 4, f"comparing {'x' * 80}")
    drawn = [part for part in re.split(r"\x1b\[2K|[\r\n]", told.getvalue()) if "comparing" in part]
    assert drawn
    assert all(re.search(r" 0\.\d s comparing x+…$", part) for part in drawn)
    assert "\x1b[1A\x1b[2K\x1b[1A" not in told.getvalue()


def test_errors_and_remarks_are_folded_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    told = io.StringIO()
    terminal = Console(file=told, force_terminal=True, color_system=None, width=60)
    monkeypatch.setattr(output, "error_console", lambda: terminal)
    for print_it in (output.print_error, output.print_remark):
        told.truncate(0)
        print_it(WORDS)
        first, *_ = told.getvalue().strip("\0").splitlines()
        assert 40 < len(first) <= 60


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_says_which_of_how_many_and_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Steps(is_quiet=False, clock=clock).step("Engines of m") as line:
        line.update("planning")
        clock.now = 130.0
        line.begin(3, 8, BRACKETED)
        clock.now = 131.0
        line.show("too soon after the last line")
        clock.now = 145.0
        line.show("compiling C++")
        clock.now = 3900.0
        line.summary = "8 built"
    assert capsys.readouterr().err.splitlines() == [
        "  Engines of m (0.0 s): planning",
        f"  Engines of m (3 of 8, 2 min 10 s): {BRACKETED}",
        "  Engines of m (3 of 8, 2 min 25 s): compiling C++",
        "done Engines of m 1 h 5 min 8 built",
    ]


def test_a_log_that_is_silent_for_long_says_that_the_step_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    looked = threading.Event()
    say_still = StepLine.say_still

    def say(line: StepLine) -> None:
        is_late = bool(clock.now)
        say_still(line)
        if is_late:
            looked.set()

    monkeypatch.setattr(progress, "BEAT_S", 0.01)
    monkeypatch.setattr(StepLine, "say_still", say)
    with Steps(is_quiet=False, clock=clock).step("Engines of m") as line:
        line.show("compiling C++")
        clock.now = 31.0
        assert looked.wait(60)
    assert capsys.readouterr().err.splitlines() == [
        "  Engines of m (31 s): still at it: compiling C++",
        "done Engines of m 31 s ",
    ]


def test_a_step_may_have_begun_before_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Steps(is_quiet=False, clock=clock).step("Demo", 2.5):
        clock.now = 1.0
    assert capsys.readouterr().err.splitlines() == ["done Demo 3.5 s "]


def test_an_event_has_the_seconds_since_the_start_and_json_has_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    for is_quiet in (True, False):
        clock.now = 0.0
        with Steps(is_quiet=is_quiet, clock=clock).step("Demo", 2.5) as line:
            clock.now = 1.0
            assert line.event("[it] happened") == 3.5
            assert line.event("before", time.time() - 2.0) == pytest.approx(1.5, abs=0.5)
    now, before, done = capsys.readouterr().err.splitlines()
    assert now == "  [   3.5 s] [it] happened"
    assert re.fullmatch(r"  \[   1\.[45] s\] before", before)
    assert done.startswith("done Demo")


def test_for_programs_there_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps(is_quiet=True).step("Engines of m") as line:
        line.begin(1, 2, "building")
    assert capsys.readouterr().err == ""
