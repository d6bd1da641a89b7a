"""What commands say of a fleet that does not answer, or whose processes ended."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.fleet.control_client import notify_fleet
from services.cli.fleet.fleet_file import RunningFleet
from services.cli.fleet.status import process_lines
from services.cli.settings import CliSettings

FLEET = RunningFleet(
    supervisor_pid=1, controller="c", grpc_address="g", metrics_address="m", store_url="s"
)
IN_OWN_MOUNTS = ("unshare", "--map-root-user", "--mount")
FULL_DISK = """
mount -t tmpfs -o size=64k none "$1" && mkdir -m 700 "$1/run"
cat /dev/zero >"$1/filled" 2>/dev/null
exec "$0" -m services.cli.main $2
"""
AT = "2026-11-24T10:00:03+00:00"


def test_what_was_published_is_no_failure_when_the_controller_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert notify_fleet(CliSettings(home=tmp_path)) is False
    assert notify_fleet(CliSettings(home=tmp_path, controller="127.0.0.1:1")) is True
    said = capsys.readouterr().err
    assert "warning: written to the store, but the fleet does not act on it yet" in said
    assert "controller at 127.0.0.1:1" in said


def test_processes_that_are_away_and_those_started_again_have_a_line() -> None:
    away = FLEET.with_trouble("ray", "ended with exit code 1: raylet ended", AT)
    assert process_lines(away) == [
        "ray does not run (ended with exit code 1: raylet ended); it is being started again"
    ]
    assert RunningFleet.from_json(away.canonical_json()) == away
    again = away.with_trouble("ray", "", AT)
    (line,) = process_lines(again)
    assert line.startswith("ray was started again 1 time, last at 2026-11-24 10:00:03Z: it ended")
    twice = again.with_trouble("ray", "ended", AT).with_trouble("ray", "", AT)
    assert twice.restarts["ray"].num == 2
    assert FLEET.with_trouble("ray", "", AT) == FLEET


def test_a_start_in_the_background_on_a_full_disk_says_so(tmp_path: Path) -> None:
    if subprocess.run([*IN_OWN_MOUNTS, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        up = f"up --detach --grpc-port {taken.getsockname()[1]}"
        done = subprocess.run(
            [*IN_OWN_MOUNTS, "sh", "-c", FULL_DISK, sys.executable, str(tmp_path), up],
            env=dict(os.environ) | {"SMELT_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 1
    assert f"{tmp_path}/run/up.log cannot be written: No space left on device" in done.stderr
