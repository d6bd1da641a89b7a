"""What a fleet leaves when a signal comes while it stops."""

import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.cli.fleet.local_fleet import LocalFleet
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings


def interrupt(*_: object) -> None:
    """What Ctrl-C does, and SIGTERM to a fleet that was started."""
    raise KeyboardInterrupt


@pytest.fixture
def survivor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not end by itself."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


@pytest.fixture
def fleet(
    tmp_path: Path, survivor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> LocalFleet:
    """One that began the survivor, and nothing else that runs here."""
    begun = [psutil.Process(survivor.pid)]
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: begun)
    return LocalFleet(CliSettings(home=tmp_path), UpOptions(), linger_s=0.1)


def test_what_lingers_is_killed_when_a_signal_ends_the_close(
    fleet: LocalFleet, survivor: subprocess.Popen[bytes]
) -> None:
    stopped: list[str] = []
    fleet.held.callback(stopped.append, "controller")
    fleet.held.callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        fleet.__exit__()
    assert stopped == ["controller"]
    assert survivor.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), psutil.NoSuchProcess(1)])
def test_a_fleet_that_cannot_list_its_processes_stops_those_it_knows(
    fleet: LocalFleet, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> list[psutil.Process]:
        raise error

    monkeypatch.setattr(psutil.Process, "children", fail)
    stopped: list[str] = []
    fleet.held.callback(stopped.append, "controller")
    fleet.__exit__()
    assert stopped == ["controller"]


def test_a_signal_while_it_waits_for_what_lingers_ends_the_waiting_alone(
    fleet: LocalFleet, survivor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "poll", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fleet.__exit__()
    assert survivor.wait(60) == -signal.SIGKILL
