"""Child processes of `smelt up`: ready, dead on arrival, stopped."""

import os
import re
from pathlib import Path

import pytest

from services.cli.supervisor import ManagedProcess, ProcessSpec
from services.contracts.errors import NotReadyError

READY = """
import json, os, signal
with os.fdopen(int(os.environ["T_READY_FD"]), "w") as pipe:
    pipe.write(json.dumps({"value": os.environ["T_VALUE"]}) + "\\n")
signal.pause()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(code: str, **settings: object) -> ManagedProcess:
        (tmp_path / "managed_child.py").write_text(code)
        spec = ProcessSpec(module="managed_child", env_prefix="T_", settings=settings)
        return ManagedProcess(spec, tmp_path / "child.log", start_timeout_s=30)

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


def test_waiting_ends_with_the_process(start) -> None:
    process = start(READY, value="a")
    process.wait()
    process.start()
    os.kill(process.pid, 9)
    process.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
