"""What the raylet runs for a worker: asks the fork server for one, else does as Ray does.

In place of Ray's `setup_worker.py`, with its arguments, and run by its path: it imports nothing but
the standard library, as this process ends once the worker runs.
"""

import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

# The raylet waits for 60 s in all; a server that ended closes the connection at once.
_TIMEOUT_S: Final = 45.0
_SERVER: Final = "SMELT_FORK_SERVER"
_RUNTIME_ENV: Final = "--serialized-runtime-env-context="
_LANGUAGE: Final = "--language="


def main(arguments: list[str]) -> None:
    """Return once a fork runs; otherwise this process becomes the worker, by Ray's own way."""
    name = os.environ.get(_SERVER)
    plain = [each for each in arguments if not each.startswith((_RUNTIME_ENV, _LANGUAGE))]
    own = set(arguments) - set(plain)
    # An environment of its own, and flags of Python, are for a process's start.
    is_usual = own <= {f"{_LANGUAGE}PYTHON", f"{_RUNTIME_ENV}{{}}"} and plain[0][:1] != "-"
    if name and is_usual:
        try:
            start_fork(name, plain)
            return
        except OSError as error:
            sys.stderr.write(f"the fork server does not fork: {error}\n")
    os.execv(sys.executable, [sys.executable, _rays_setup(), *arguments])  # noqa: S606 - no shell


def start_fork(name: str, arguments: list[str], timeout_s: float = _TIMEOUT_S) -> None:
    """Have a fork run a script; raises OSError where none does.

    Args:
        name: of the server's abstract address.
        arguments: path of the script, and its own.
        timeout_s: how long the server may take.
    """
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(f"\0{name}")
        socket.send_fds(connection, [b"\n"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        if not connection.recv(1):
            raise ConnectionError(f"{name} closed the connection")
        # Until it has this the fork does nothing: who gave up waiting has no second worker.
        connection.sendall(b"g")


def _rays_setup() -> str:
    """Ray's script, found without importing Ray."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "_private/workers/setup_worker.py")


if __name__ == "__main__":
    main(sys.argv[1:])
