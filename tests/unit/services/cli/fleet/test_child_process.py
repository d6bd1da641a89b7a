"""Child processes of `smelt up`: ready, dead on arrival, stopped, and never left behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from services.cli.fleet.child_process import ChildProcess, ProcessSpec, ProgramSpec
from services.contracts.errors import NotReadyError

READY = """
import json, os, signal
with os.fdopen(int(os.environ["T_READY_FD"]), "w") as pipe:
    pipe.write(json.dumps({"value": os.environ["T_VALUE"]}) + "\\n")
signal.pause()
"""

HEARS = """
import json, os, signal, sys
heard = sys.stdin.readline().strip()
with os.fdopen(int(os.environ["T_READY_FD"]), "w") as pipe:
    pipe.write(json.dumps({"heard": heard}) + "\\n")
signal.pause()
"""
SAYS_AND_WAITS = "echo here; exec sleep 600"
KILLED_OWNER = """
import os, signal, sys
from pathlib import Path
from services.cli.fleet.child_process import ChildProcess, ProgramSpec
spec = ProgramSpec(arguments=["sh", "-c", "echo $$; exec sleep 600"], probe=str.strip)
ChildProcess(spec, Path(sys.argv[1]), 30).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(code: str, within_s: float = 30, **settings: object) -> ChildProcess:
        (tmp_path / "managed_child.py").write_text(code)
        spec = ProcessSpec(module="managed_child", env_prefix="T_", settings=settings)
        return ChildProcess(spec, tmp_path / "child.log", start_timeout_s=within_s)

    return make


def test_settings_reach_the_child_and_it_stops(start) -> None:
    process = start(READY, value="a")
    assert process.start() == {"value": "a"}
    process.stop()
    process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    process.update_settings(value="b")
    assert process.start() == {"value": "b"}
    process.stop()


def test_a_child_that_dies_leaves_its_words(start) -> None:
    process = start("raise SystemExit('no such store')")
    words = f"ended before it was ready: no such store; its log: {process.log_path}"
    with pytest.raises(NotReadyError, match=re.escape(words)):
        process.start()


def test_a_late_child_names_the_setting_and_no_lines_of_a_former_run(start) -> None:
    process = start("import signal; signal.pause()", within_s=0.1)
    process.log_path.write_text("a line of a former run\n")
    with pytest.raises(NotReadyError, match="not ready within 0.1 s.*SMELT_START_TIMEOUT") as late:
        process.start()
    assert str(late.value).endswith(f"its log: {process.log_path}")


def test_a_child_gets_a_line_that_is_made_while_it_starts(start) -> None:
    process = start(HEARS, value="a")
    # It runs by then: what the line waits for does not wait for its imports.
    assert process.start(lambda: f"{Path(f'/proc/{process.pid}').exists()}\n") == {"heard": "True"}
    process.stop()


def test_a_line_that_is_not_made_ends_the_child_and_is_the_error(start) -> None:
    process = start(HEARS)

    def fail() -> str:
        raise NotReadyError("the other one did not start")

    with pytest.raises(NotReadyError, match="the other one did not start"):
        process.start(fail)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_child_that_ends_before_its_line_leaves_its_words(start) -> None:
    process = start("raise SystemExit('no such store')")

    def late() -> str:
        process.wait()
        return "a line\n"

    with pytest.raises(NotReadyError, match="ended before it was ready: no such store"):
        process.start(late)


def test_waiting_ends_with_the_process(start) -> None:
    process = start(READY, value="a")
    process.wait()
    process.start()
    os.kill(process.pid, 9)
    process.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_module_that_is_run_to_its_end_may_fail_or_take_too_long(start) -> None:
    assert start("").run(30)
    assert not start("raise SystemExit('no such store')").run(30)
    process = start("import signal; signal.pause()")
    assert not process.run(0.1)
    assert process.wait() == "ended by signal 9 (Killed)"


def program(
    script: str,
    log: Path,
    *,
    timeout_s: float = 30,
    variables: Mapping[str, str] | None = None,
    is_ready: bool = True,
) -> ChildProcess:
    spec = ProgramSpec(
        arguments=["sh", "-c", script],
        probe=lambda text: text.strip() if is_ready else "",
        variables=variables or {},
    )
    return ChildProcess(spec, log, timeout_s)


def test_a_program_is_waited_for_and_stopped(tmp_path: Path) -> None:
    process = program(SAYS_AND_WAITS, tmp_path / "log")
    assert process.start() == {"url": "here"}
    child = psutil.Process(process.pid)
    process.stop()
    assert not child.is_running()


def test_a_former_run_s_log_says_nothing_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("http://former\n")
    process = program(SAYS_AND_WAITS, tmp_path / "log")
    assert process.start() == {"url": "here"}
    process.stop()


def test_a_program_gets_its_environment(tmp_path: Path) -> None:
    script = "echo $GREETING; exec sleep 600"
    process = program(script, tmp_path / "log", variables={"GREETING": "hello"})
    assert process.start() == {"url": "hello"}
    process.stop()


def test_the_error_of_a_program_that_ends_holds_its_log(tmp_path: Path) -> None:
    process = program("echo port taken; exit 3", tmp_path / "log", is_ready=False)
    with pytest.raises(NotReadyError, match=r"sh ended before it was ready\n.*\nport taken"):
        process.start()


def test_a_program_that_takes_too_long_is_an_error_and_is_ended(tmp_path: Path) -> None:
    process = program(SAYS_AND_WAITS, tmp_path / "log", timeout_s=0.2, is_ready=False)
    with pytest.raises(NotReadyError, match=r"sh: not ready within 0.2 s"):
        process.start()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_program_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.run([sys.executable, "-c", KILLED_OWNER, str(log)], check=False)
    assert owner.returncode == -signal.SIGKILL
    pid = int(log.read_text())
    # It may be gone at any moment, or be a zombie where the first process reaps nothing.
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        gone, _ = psutil.wait_procs([process], timeout=30)
        assert gone or process.status() == psutil.STATUS_ZOMBIE
