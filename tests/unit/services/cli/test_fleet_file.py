"""The running fleet's file: found while its supervisor lives, and only then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.fleet_file import (
    RunningFleet,
    find_fleet,
    remove_fleet,
    require_fleet,
    write_fleet,
)
from services.contracts.errors import NotFoundError


def _running(pid: int) -> RunningFleet:
    return RunningFleet(
        supervisor_pid=pid, controller="c", grpc_address="g", metrics_address="m", store_url="s"
    )


def test_a_living_fleet_is_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    running = _running(os.getpid())
    write_fleet(tmp_path, running)
    assert require_fleet(tmp_path) == running
    remove_fleet(tmp_path)
    remove_fleet(tmp_path)
    assert find_fleet(tmp_path) is None


def test_a_file_left_by_a_dead_supervisor_counts_as_none(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    write_fleet(tmp_path, _running(child.pid))
    with pytest.raises(NotFoundError, match="smelt up"):
        require_fleet(tmp_path)


def test_a_broken_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{")
    assert find_fleet(tmp_path) is None
