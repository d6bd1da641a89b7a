"""Child processes of `smelt up` that end are started again, and harm nothing else meanwhile."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from services.cli.kept_process import KeptProcess
from services.cli.supervisor import ManagedProcess, ProcessSpec

# Long enough for any machine; it only ends a test that fails.
LIMIT_S = 60.0
CHILD = """
import json, os, signal, sys
from pathlib import Path
if Path(os.environ["T_FAULT"]).exists():
    sys.exit("it cannot start now")
with os.fdopen(int(os.environ["T_READY_FD"]), "w") as pipe:
    pipe.write(json.dumps({"pid": os.getpid(), "value": os.environ["T_VALUE"]}) + "\\n")
signal.pause()
"""


class Kept:
    """One kept process, and what was heard of it."""

    def __init__(self, folder: Path) -> None:
        self.fault = folder / "fault"
        (folder / "kept_child.py").write_text(CHILD)
        settings = {"fault": self.fault, "value": "first"}
        spec = ProcessSpec(module="kept_child", env_prefix="T_", settings=settings)
        self.process = ManagedProcess(spec, folder / "child.log", LIMIT_S)
        self.troubles: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self.restarts: SimpleQueue[dict[str, object]] = SimpleQueue()
        self.kept = KeptProcess(
            "child", self.process, on_trouble=lambda *told: self.troubles.put(told)
        )
        self.kept.on_restart = self.restarts.put
        self.process.start()
        self.kept.keep()

    def trouble(self, is_so: Callable[[str], bool]) -> str:
        """The next trouble of that kind."""
        while True:
            name, words = self.troubles.get(timeout=LIMIT_S)
            assert name == "child"
            if is_so(words):
                return words


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = Kept(tmp_path)
    yield found
    found.kept.stop()


def test_one_that_ends_is_started_again(kept: Kept) -> None:
    killed = kept.process.pid
    os.kill(killed, signal.SIGKILL)
    assert kept.trouble(bool) == "ended by signal 9 (Killed)"
    assert kept.trouble(lambda words: not words) == ""
    said = kept.restarts.get(timeout=LIMIT_S)
    assert said["pid"] == kept.process.pid != killed


def test_one_that_cannot_start_is_tried_until_it_can(kept: Kept) -> None:
    """A restart that fails ends nothing: the fleet goes on without it."""
    kept.fault.touch()
    os.kill(kept.process.pid, signal.SIGKILL)
    for _ in range(2):
        assert "it cannot start now" in kept.trouble(lambda words: "cannot start" in words)
    kept.fault.unlink()
    kept.kept.renew()
    assert kept.trouble(lambda words: not words) == ""
    os.kill(kept.process.pid, 0)


def test_one_that_is_renewed_has_its_new_settings(kept: Kept) -> None:
    kept.process.update_settings(value="second")
    kept.kept.renew()
    assert kept.restarts.get(timeout=LIMIT_S)["value"] == "second"


def test_one_that_is_stopped_stays_stopped(kept: Kept) -> None:
    kept.fault.touch()
    os.kill(kept.process.pid, signal.SIGKILL)
    kept.trouble(lambda words: "cannot start" in words)
    kept.fault.unlink()
    kept.kept.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(kept.process.pid, 0)
