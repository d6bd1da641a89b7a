"""Sockets of dead processes go; those of processes that run stay, whatever stops beside them."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.fleet.local_fleet import LocalFleet, remove_stale_sockets
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings

LISTEN = """
import socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for each, path in zip(held, sys.argv[1:]):
    each.bind(path)
    each.listen(1)
print("listens", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, because the path of a socket holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="smelt-") as folder:
        yield Path(folder)


@pytest.fixture
def living(home: Path) -> Iterator[list[Path]]:
    """The sockets of a process that runs; beside them are those of one that was killed."""
    folder = CliSettings(home=home).run_dir
    folder.mkdir(parents=True)
    with _listening(folder / "r-1-dead.sock", folder / "r-3-dead.sock") as dead:
        dead.kill()
    paths = [folder / "r-2-lives.sock", folder / "r-4-lives.sock"]
    with _listening(*paths) as process:
        yield paths
        process.kill()


def _listening(*paths: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", LISTEN, *map(str, paths)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"listens\n"
    return process


def test_a_fleet_that_begins_or_ends_removes_those_of_dead_processes_alone(
    home: Path, living: list[Path]
) -> None:
    folder = living[0].parent
    options = UpOptions(grpc_port=0, metrics_port=0, ray_address="127.0.0.1:1")
    with LocalFleet(CliSettings(home=home), options):
        assert sorted(path for path in folder.iterdir() if path.is_socket()) == sorted(living)
    assert sorted(path for path in folder.iterdir() if path.is_socket()) == sorted(living)


def test_a_listener_that_is_busy_is_left_alone(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as waiting:
        path = home / "r.sock"
        listening.bind(str(path))
        listening.listen(0)
        waiting.connect(str(path))  # its queue is full now
        (home / "other.sock").write_text("no socket")
        remove_stale_sockets(home)
        assert path.is_socket()
        assert (home / "other.sock").exists()
