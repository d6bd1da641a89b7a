"""A fleet under a first process that reaps nobody, as a container's may: `-m ... HOME WHAT`.

WHAT is what the fleet leaves when it stops: `zombie`, a process that has ended and is reaped by
nobody, or `survivor`, one that does not end. What became of it is said on standard output.
"""

import ctypes
import os
import select
import subprocess
import sys
from pathlib import Path

import psutil

from services.cli.fleet.local_fleet import LocalFleet
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings
from services.contracts.process.lifetime import end_with_parent

_PR_SET_CHILD_SUBREAPER = 36
# Begins a process, says its id, and does not wait for it. A shell may.
_WITH_ZOMBIE = """
import os, sys
print(os.spawnlp(os.P_NOWAIT, "true", "true"), flush=True)
sys.stdin.read()
"""


def _leave_zombie(fleet: LocalFleet) -> None:
    command = [sys.executable, "-c", _WITH_ZOMBIE]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout
    zombie = int(parent.stdout.readline())
    select.select([os.pidfd_open(zombie)], [], [])
    # Called last first: its parent ends, and it is the first process's.
    fleet.held.callback(lambda: print(psutil.Process(zombie).status(), flush=True))
    fleet.held.callback(parent.communicate)


def _run_fleet(home: Path, what: str) -> None:
    options = UpOptions(grpc_port=0, metrics_port=0)
    linger_s = 3600.0 if what == "zombie" else 0.1
    with LocalFleet(CliSettings(home=home), options, linger_s=linger_s) as fleet:
        if what == "zombie":
            _leave_zombie(fleet)
        else:
            survivor = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    if what == "survivor":
        print(survivor.wait(), flush=True)


def main() -> int:
    """Be the first process of one that runs the fleet; returns its exit status."""
    own_pid = os.getpid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        end_with_parent(own_pid)
        _run_fleet(Path(sys.argv[1]), sys.argv[2])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
