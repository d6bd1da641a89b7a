"""The running fleet's file: found while its supervisor lives, and only then."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.fleet.down import run_down
from services.cli.fleet.fleet_file import (
    RunningFleet,
    find_fleet,
    fleet_lock,
    require_fleet,
    starting_words,
    supervisor_pid,
    write_fleet,
)
from services.cli.fleet.up import run_up
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError

SUPERVISOR = """
import signal, sys
from pathlib import Path
from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
run_dir = Path(sys.argv[1])
with fleet_lock(run_dir):
    if sys.argv[2:]:
        write_fleet(run_dir, RunningFleet(
            supervisor_pid=int(sys.argv[2]), controller="c", grpc_address="g",
            metrics_address="m", store_url="s"))
    print("published", flush=True)
    signal.pause()
"""


def _running(pid: int) -> RunningFleet:
    return RunningFleet(
        supervisor_pid=pid, controller="c", grpc_address="g", metrics_address="m", store_url="s"
    )


def test_a_fleet_is_found_while_its_supervisor_holds_the_lock(tmp_path: Path) -> None:
    running = _running(os.getpid())
    with fleet_lock(tmp_path):
        assert find_fleet(tmp_path) is None
        write_fleet(tmp_path, running)
        assert require_fleet(tmp_path) == running
    assert find_fleet(tmp_path) is None
    assert not (tmp_path / "fleet.json").exists()


def test_one_folder_has_one_supervisor(tmp_path: Path) -> None:
    with (
        fleet_lock(tmp_path),
        pytest.raises(InvalidRequestError, match="runs or starts already"),
        fleet_lock(tmp_path),
    ):
        pass
    with fleet_lock(tmp_path):
        pass


def test_a_killed_supervisor_leaves_no_fleet_even_if_its_process_id_lives(tmp_path: Path) -> None:
    # This test's own process stands for the stranger that got the id.
    arguments = [sys.executable, "-c", SUPERVISOR, str(tmp_path), str(os.getpid())]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        assert supervisor.stdout.readline() == "published\n"
        assert require_fleet(tmp_path).supervisor_pid == os.getpid()
        supervisor.send_signal(signal.SIGKILL)
    assert (tmp_path / "fleet.json").exists()
    with pytest.raises(NotFoundError, match="smelt up"):
        require_fleet(tmp_path)


def test_a_fleet_that_is_starting_is_told_of_and_can_be_stopped(tmp_path: Path) -> None:
    settings = CliSettings(home=tmp_path)
    with pytest.raises(NotFoundError) as refused:
        run_down(settings)
    assert "smelt up" not in str(refused.value)
    log = settings.run_dir / "up.log"
    arguments = [sys.executable, "-c", SUPERVISOR, str(settings.run_dir)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        assert supervisor.stdout.readline() == "published\n"
        log.write_text("its steps")
        with pytest.raises(NotReadyError, match=r"is starting here since 20.*Z; .*smelt logs"):
            require_fleet(settings.run_dir)
        options = UpOptions(grpc_port=0, metrics_port=0)
        again = {"is_demo": False, "is_over_after_demo": False, "is_detached": True}
        with pytest.raises(InvalidRequestError, match="is starting here since"):
            run_up(settings, options, **again)
        assert log.read_text() == "its steps"
        assert supervisor_pid(settings.run_dir) == supervisor.pid
        run_down(settings)
        assert supervisor.wait() == -signal.SIGTERM
    assert not starting_words(settings.run_dir)


def test_a_broken_file_counts_as_none(tmp_path: Path) -> None:
    with fleet_lock(tmp_path):
        (tmp_path / "fleet.json").write_text("{")
        assert find_fleet(tmp_path) is None
