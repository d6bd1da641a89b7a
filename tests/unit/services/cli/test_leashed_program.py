"""Programs that are not ours: waited for, ended, and never left behind."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry

from services.cli.leashed_program import LeashedProgram, answers
from services.contracts.errors import NotReadyError
from services.telemetry.prometheus_recorder import serve_metrics

SAYS_AND_WAITS = ["sh", "-c", "echo here; exec sleep 600"]
KILLED_OWNER = """
import os, signal, sys
from pathlib import Path
from services.cli.leashed_program import LeashedProgram
program = LeashedProgram(["sh", "-c", "echo $$; exec sleep 600"], Path(sys.argv[1]))
program.wait_for(lambda: program.log().strip(), 30)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_waited_for_and_stopped(tmp_path: Path) -> None:
    before = psutil.Process().children()
    program = LeashedProgram(SAYS_AND_WAITS, tmp_path / "log")
    assert program.wait_for(lambda: program.log().strip(), 30) == "here"
    (child,) = [c for c in psutil.Process().children() if c not in before]
    program.stop()
    assert not child.is_running()


def test_it_gets_its_environment(tmp_path: Path) -> None:
    program = LeashedProgram(
        ["sh", "-c", "echo $GREETING; exec sleep 600"],
        tmp_path / "log",
        environment={"GREETING": "hello"},
    )
    assert program.wait_for(lambda: program.log().strip(), 30) == "hello"
    program.stop()


def test_one_that_ends_says_its_last_words(tmp_path: Path) -> None:
    program = LeashedProgram(["sh", "-c", "echo port taken; exit 3"], tmp_path / "log")
    with pytest.raises(NotReadyError, match=r"sh ended at once\n.*\nport taken"):
        program.wait_for(lambda: "", 30)
    program.stop()


def test_one_that_takes_too_long_is_told_of(tmp_path: Path) -> None:
    program = LeashedProgram(SAYS_AND_WAITS, tmp_path / "log")
    with pytest.raises(NotReadyError, match=r"sh: not ready in 0.2 s"):
        program.wait_for(lambda: "", 0.2)
    program.stop()


def test_it_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.run([sys.executable, "-c", KILLED_OWNER, str(log)], check=False)
    assert owner.returncode == -signal.SIGKILL
    pid = int(log.read_text())
    # It may be gone at any moment, or be a zombie where the first process reaps nobody.
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        gone, _ = psutil.wait_procs([process], timeout=30)
        assert gone or process.status() == psutil.STATUS_ZOMBIE


def test_a_page_answers_while_somebody_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # An environment's proxy has no business with an address of this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = serve_metrics(0, CollectorRegistry())
    url = f"http://127.0.0.1:{server.port}/metrics"
    assert answers(url)
    server.close()
    assert not answers(url)
