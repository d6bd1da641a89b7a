"""Forks the workers of a local Ray: `python -m [...].ray_worker.fork_server NAME PARENT-PID`.

A worker imports Ray, Serve and the replica's code, on hosts with a GPU torch and Inductor too: some
seconds of a processor, and on such hosts 0.4 GiB. Here it is imported once, while the rest of Ray
starts; a fork has all of it at once, in memory that they share until it is written to.
"""

import gc
import importlib
import json
import logging
import os
import resource
import runpy
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.contracts.process.lifetime import end_with_parent
from services.engines.device.cuda_driver import is_cuda_initialised
from services.replica.ray_worker.environment import changed_for_imports
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
# Of what is imported: numpy's library starts threads as it is loaded, which no fork has, so that
# it has one in workers too; and asked for some devices alone, by name, torch initialises CUDA.
_WHILE_IMPORTING: Final = {"OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": None}
# NVIDIA's management library has one that waits; forks ask that library, and CUDA, without it.
_DRIVERS_THREAD: Final = "cuda"
_MOST_WAITING: Final = 64
_TIMEOUT_S: Final = 5.0
_NUM_STREAMS: Final = 3
# Process, user and group of who connected.
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """One line of JSON; the three standard streams come along with it.

    Attributes:
        arguments: path of Ray's `default_worker.py`, and what it is given.
        environment: all variables of the worker.
        folder: where it runs.
        blocked: numbers of signals that it blocks.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    blocked: list[int]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request with what came along.

    Attributes:
        asker: the process that the raylet started.
        streams: standard input, output and error.
    """

    request: WorkerRequest
    asker: int
    streams: list[int]


def import_once(modules: Sequence[str] = MODULES) -> None:
    """Import what all workers need; raises RuntimeError for imports that no fork can be made of."""
    with changed_for_imports(_WHILE_IMPORTING):
        for name in modules:
            importlib.import_module(name)
    if others := [name for name in _other_threads() if not name.startswith(_DRIVERS_THREAD)]:
        raise RuntimeError(f"imports started threads, which no fork would have: {others}")
    if is_cuda_initialised():
        raise RuntimeError("imports initialised CUDA, which no fork could use")
    # A collector that looks through what stays would copy its pages to each worker.
    gc.collect()
    gc.freeze()


def _other_threads() -> list[str]:
    """Names of this process's threads but for its first."""
    tasks = Path("/proc/self/task").iterdir()
    return [(each / "comm").read_text().strip() for each in tasks if each.name != str(os.getpid())]


def fork_for_each(listener: socket.socket) -> WorkerRequest:
    """Fork for each connection; returns in forks alone, when they are to run."""
    # Workers are the raylet's to watch: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                asked = _received(connection)
                is_fork = _forked(asked.streams)
            except (OSError, ValueError, TypeError, RecursionError) as error:
                logger.warning("no worker is forked: %r", error)
                continue
            if is_fork:
                # Whatever fails here ends this process; who asked takes Ray's way then.
                _become_worker(asked)
                _await_go_ahead(connection)
                return asked.request


def _forked(streams: list[int]) -> bool:
    """Whether this is the fork; the other has no more of its streams."""
    is_fork = False
    try:
        with warnings.catch_warnings():
            # Of threads beside a fork; of those that are here `import_once` knows.
            warnings.simplefilter("ignore", DeprecationWarning)
            is_fork = os.fork() == 0
    finally:
        if not is_fork:
            for stream in streams:
                os.close(stream)
    return is_fork


def _received(connection: socket.socket) -> Asked:
    """Read one request; raises OSError, ValueError, TypeError, RecursionError for what is none."""
    connection.settimeout(_TIMEOUT_S)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    asker, uid, _ = _CREDENTIALS.unpack(peer)
    # Process 0 is one of another container, whose network is this one's.
    if uid != os.getuid() or not asker or os.getsid(asker) != os.getsid(0):
        raise PermissionError(f"process {asker} of user {uid} does not belong to this Ray session")
    _, streams, _, _ = socket.recv_fds(connection, 1, _NUM_STREAMS)
    try:
        with connection.makefile("rb") as lines:
            request = WorkerRequest(**json.loads(lines.readline()))
        if len(streams) != _NUM_STREAMS:
            raise ValueError(f"received {len(streams)} of {_NUM_STREAMS} file descriptors")
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise
    return Asked(request=request, asker=asker, streams=streams)


def _become_worker(asked: Asked) -> None:
    """Take over all that the raylet gave to the process that asked, which waits."""
    request = asked.request
    # By the group that it made the raylet ends what a worker started.
    os.setpgid(0, os.getpgid(asked.asker))
    adjustment = Path(f"/proc/{asked.asker}/oom_score_adj").read_text()
    with suppress(OSError):  # some containers forbid it
        Path("/proc/self/oom_score_adj").write_text(adjustment)
    files = resource.prlimit(asked.asker, resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    for number, stream in enumerate(asked.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    logging.captureWarnings(capture=False)
    logging.basicConfig(level=logging.WARNING, handlers=[], force=True)
    if "numpy.random" in sys.modules:
        # Forks would draw the same numbers; Python's own are drawn anew by its `random`.
        sys.modules["numpy.random"].seed()


def _await_go_ahead(connection: socket.socket) -> None:
    """Say that this is ready; ends where who asked has given up."""
    connection.sendall(b"r")
    # However late: whatever ends that process closes the connection.
    connection.settimeout(None)
    if connection.recv(1) != b"g":
        os._exit(0)


def main(name: str, parent_pid: str) -> None:
    """Listen at an abstract address, which no file can outlive, until the parent ends.

    At once: who connects before all is imported waits, and need not import it itself.
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
        request = fork_for_each(listener)
    sys.argv = request.arguments
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
