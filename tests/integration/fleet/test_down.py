"""The end of a fleet."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.controller.platform.ray.session_logs import RAY_LOGS
from tests.integration.fleet.local_fleet import SMELT, WAIT_S, fleet_home, still_running
from tests.integration.fleet.onnx_files import write_noop, write_recipe

pytestmark = pytest.mark.slow


def test_down_leaves_no_process_behind(tmp_path: Path) -> None:
    """Supervisor, controller, gateway workers, all of Ray, replicas: gone when it returns."""
    with fleet_home() as fleet:
        recipe = write_recipe(tmp_path / "noop.yaml", 1, tokens=8)
        fleet.add("noop", write_noop(tmp_path / "noop.onnx"), recipe)
        fleet.up("--gateway-workers", "2")
        fleet.wait_ready("noop", 1)
        (replica,) = fleet.replicas("noop")
        assert fleet.running["num_gateway_workers"] == 2
        assert "(2 gateway workers)" in fleet.smelt_process("status").stdout
        assert len(fleet.child("services.gateway").children()) == 2
        processes = fleet.processes()
        assert replica["process_id"] in {process.pid for process in processes}
        kept = fleet.home / "run" / RAY_LOGS
        session = kept.readlink().parent
        # It cannot remove its sockets itself.
        os.kill(replica["process_id"], signal.SIGKILL)
        fleet.down()
        assert still_running(processes) == []
        # What a socket file or a fleet file left behind would mislead the next start.
        # Ray's logs stay: `smelt logs` reads those of a fleet that has ended too.
        left = {path.suffix for path in (fleet.home / "run").iterdir() if path.name != RAY_LOGS}
        assert left <= {".log", ".lock"}
        assert not session.exists()
        assert "replica:noop:1" in fleet.smelt_process("logs").stdout
        again = fleet.smelt_process("down")
        assert again.returncode == 1
        assert "there is nothing to stop" in again.stderr


def test_what_a_killed_fleet_left_of_its_ray_is_removed_by_the_next_one() -> None:
    with fleet_home() as fleet:
        fleet.up()
        kept = fleet.home / "run" / RAY_LOGS
        session = kept.readlink().parent
        processes = fleet.processes()
        os.kill(fleet.running["supervisor_pid"], signal.SIGKILL)
        assert still_running(processes) == []
        assert session.exists()
        fleet.up()
        assert not session.exists()
        assert kept.readlink().parent.exists()


@contextmanager
def _taken_interrupts() -> Iterator[None]:
    """A shell that starts tests in the background has SIGINT ignored, and children keep it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_of_a_detached_start_ends_what_was_starting() -> None:
    with fleet_home() as fleet:
        log = fleet.home / "run" / "up.log"
        arguments = [SMELT, "up", "--grpc-port", "0", "--metrics-port", "0", "--detach"]
        # Its name is there before its first line is.
        follow = ["tail", "--lines=+1", "-F", str(log)]
        with (
            _taken_interrupts(),
            subprocess.Popen(
                arguments, env=fleet.environment, stderr=subprocess.PIPE, text=True
            ) as start,
            subprocess.Popen(
                follow, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as lines,
        ):
            assert lines.stdout
            assert any("controller" in line for line in lines.stdout)
            lines.terminate()
            started = psutil.Process(start.pid).children(recursive=True)
            start.send_signal(signal.SIGINT)
            _, words = start.communicate(timeout=WAIT_S)
        assert (start.returncode, words.splitlines()[-1]) == (
            130,
            "error: interrupted; the fleet that was starting has ended",
        )
        assert len(started) > 2
        assert still_running(started) == []
        assert "there is nothing to stop" in fleet.smelt_process("down").stderr
