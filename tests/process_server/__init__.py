"""The compiler's children from a process that has imported torch, for tests of other things."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = Path(__file__).with_name("stub")


@cache
def _started() -> tuple[str, "subprocess.Popen[bytes]"]:
    """The socket of this process's server, started when it is first asked for, and the server."""
    folder = tempfile.mkdtemp(prefix="smelt-")
    address = str(Path(folder) / "processes")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.process_server.server", address],
        cwd=ROOT,
        # One thread each, as in most tests: libraries read it when they are imported.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.wait)
    atexit.register(server.kill)
    assert server.stdout is not None
    with server.stdout as said:
        assert said.readline() == b"ready\n", "the process server did not start"
    return address, server


def environment_of_forks() -> dict[str, str]:
    """What to add to the environment of programs whose compiler's children are to be forked."""
    address, _ = _started()
    paths = [str(STUB), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"SMELT_TESTS_PROCESS_SERVER": address, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def forked_children() -> Iterator[None]:
    """The compiler's children are forked from a process that has imported torch."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in environment_of_forks().items():
            environment.setenv(name, value)
        yield
