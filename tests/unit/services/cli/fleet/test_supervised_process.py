"""Child processes of `smelt up` that end are started again, and harm nothing else meanwhile."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from services.cli.fleet.child_process import ProcessSpec
from services.cli.fleet.supervised_process import SupervisedProcess

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


class Child:
    """One supervised process, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.fault = folder / "fault"
        (folder / "supervised_child.py").write_text(CHILD)
        settings = {"fault": self.fault, "value": "first"}
        spec = ProcessSpec(module="supervised_child", env_prefix="T_", settings=settings)
        self.troubles: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self.restarts: SimpleQueue[dict[str, object]] = SimpleQueue()
        self.process = SupervisedProcess(
            "child",
            spec,
            folder / "child.log",
            LIMIT_S,
            on_trouble=lambda *trouble: self.troubles.put(trouble),
        )
        self.process.on_restart = self.restarts.put
        self.process.start()
        self.process.supervise()

    def trouble(self, is_so: Callable[[str], bool]) -> str:
        """The next trouble of that kind."""
        while True:
            name, words = self.troubles.get(timeout=LIMIT_S)
            assert name == "child"
            if is_so(words):
                return words


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = Child(tmp_path)
    yield found
    found.process.close()


def test_one_that_ends_is_started_again(child: Child) -> None:
    killed = child.process.pid
    os.kill(killed, signal.SIGKILL)
    assert child.trouble(bool) == "ended by signal 9 (Killed)"
    assert child.trouble(lambda words: not words) == ""
    announced = child.restarts.get(timeout=LIMIT_S)
    assert announced["pid"] == child.process.pid != killed


def test_one_that_cannot_start_is_tried_until_it_can(child: Child) -> None:
    """A restart that fails ends nothing: the fleet goes on without it."""
    child.fault.touch()
    os.kill(child.process.pid, signal.SIGKILL)
    for _ in range(2):
        assert "it cannot start now" in child.trouble(lambda words: "cannot start" in words)
    child.fault.unlink()
    child.process.restart()
    assert child.trouble(lambda words: not words) == ""
    os.kill(child.process.pid, 0)


def test_one_that_is_restarted_has_its_new_settings(child: Child) -> None:
    child.process.update_settings(value="second")
    child.process.restart()
    assert child.restarts.get(timeout=LIMIT_S)["value"] == "second"


def test_one_that_is_stopped_stays_stopped(child: Child) -> None:
    child.fault.touch()
    os.kill(child.process.pid, signal.SIGKILL)
    child.trouble(lambda words: "cannot start" in words)
    child.fault.unlink()
    child.process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.process.pid, 0)
