"""Forks the workers of a local Ray: `python -m [...].ray_worker.fork_server NAME PARENT-PID`.

A worker imports Ray, Serve and the replica's code, on hosts with a GPU torch and Inductor too: some
seconds of a processor, and on such hosts 0.4 GiB. Here it is imported once, while the rest of Ray
starts; a fork has all of it at once, in memory that they share until it is written to.
"""

import gc
import importlib
import logging
import os
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from services.contracts.process.lifetime import end_with_parent
from services.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)

# Most of what Ray, Serve and replicas import. Not Ray: it reads what differs by worker, as its
# RAY_JOB_ID, from the environment that it is imported in.
MODULES: Final = (
    "fastapi",
    "google.protobuf.descriptor_pb2",
    "grpc.aio",
    "jsonschema",
    "requests",
    "uvicorn",
    "services.replica.deployment",
    "services.replica.ray_worker.imports",
)
# numpy's library starts threads as it is loaded: a fork takes none along.
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
# NVIDIA's management library has one that waits; forks ask that library, and CUDA, without it.
_DRIVERS_THREAD: Final = "cuda"
_MOST_WAITING: Final = 64
_REQUEST_TIMEOUT_S: Final = 5.0
_NUM_STREAMS: Final = 3
# Process, user and group of who connected.
_CREDENTIALS: Final = struct.Struct("3i")


class WorkerRequest(BaseModel, frozen=True, extra="forbid"):
    """One line of JSON; the three standard streams come along with it.

    Attributes:
        arguments: path of Ray's `default_worker.py`, and what it is given.
        environment: all variables of the worker.
        folder: where it runs.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """A request with what came along.

    Attributes:
        group: process group of who asked.
        streams: standard input, output and error.
    """

    request: WorkerRequest
    group: int
    streams: list[int]


def import_once(modules: Sequence[str] = MODULES) -> None:
    """Import what all workers need; raises RuntimeError for imports that no fork can be made of."""
    given = os.environ.pop(_BLAS_THREADS, None)
    os.environ[_BLAS_THREADS] = "1"
    for name in modules:
        importlib.import_module(name)
    del os.environ[_BLAS_THREADS]
    if given is not None:
        os.environ[_BLAS_THREADS] = given
    if others := [name for name in _other_threads() if not name.startswith(_DRIVERS_THREAD)]:
        raise RuntimeError(f"imports started threads, which no fork would have: {others}")
    # A collector that looks through what stays would copy its pages to each worker.
    gc.collect()
    gc.freeze()


def _other_threads() -> list[str]:
    """Names of this process's threads but for its first."""
    tasks = Path("/proc/self/task").iterdir()
    return [(each / "comm").read_text().strip() for each in tasks if each.name != str(os.getpid())]


def fork_for_each(listener: socket.socket) -> Ordered:
    """Answer each connection with the process id of a fork; returns in the forks alone."""
    # Workers are the raylet's to watch: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                ordered = _received(connection)
            except (OSError, ValueError) as error:
                logger.warning("no worker is forked: %s", error)
                continue
            if (pid := os.fork()) == 0:
                return ordered
            for stream in ordered.streams:
                os.close(stream)
            with suppress(OSError):
                connection.sendall(f"{pid}\n".encode())


def _received(connection: socket.socket) -> Ordered:
    """Read one request; raises OSError, and ValueError for what is none."""
    connection.settimeout(_REQUEST_TIMEOUT_S)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(peer)
    if uid != os.getuid():
        raise PermissionError(f"user {uid} asks, and this process is user {os.getuid()}'s")
    _, streams, _, _ = socket.recv_fds(connection, 1, _NUM_STREAMS)
    try:
        with connection.makefile("rb") as lines:
            request = WorkerRequest.model_validate_json(lines.readline())
        if len(streams) != _NUM_STREAMS:
            raise ValueError(f"{len(streams)} of {_NUM_STREAMS} standard streams came along")
        return Ordered(request=request, group=os.getpgid(pid), streams=streams)
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def run_worker(ordered: Ordered) -> None:
    """Be what Ray would have started: its script in this process; returns when that ends."""
    with suppress(OSError):
        # The raylet ends what a worker started by the group that it made for it.
        os.setpgid(0, ordered.group)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(ordered.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(ordered.request.environment)
    os.chdir(ordered.request.folder)
    logging.captureWarnings(capture=False)
    logging.basicConfig(level=logging.WARNING, handlers=[], force=True)
    sys.argv = ordered.request.arguments
    runpy.run_path(sys.argv[0], run_name="__main__")


def main(name: str, parent_pid: str) -> None:
    """Listen at an abstract address, which no file can outlive, until the parent ends.

    At once: who connects before all is imported waits for less time than it would import itself.
    """
    end_with_parent(int(parent_pid))
    configure_logging("workers")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(_MOST_WAITING)
        try:
            import_once()
        except RuntimeError as error:
            logger.error("workers start without forks, which takes longer: %s", error)
            return
        ordered = fork_for_each(listener)
    run_worker(ordered)


if __name__ == "__main__":
    main(*sys.argv[1:])
