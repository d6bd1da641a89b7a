"""What a fleet leaves behind when it stops."""

import signal
import subprocess
import sys
from pathlib import Path


def said_of_left(home: Path, what: str) -> str:
    """What a fleet says of the process that it left, when it has stopped."""
    return subprocess.run(
        [sys.executable, "-m", "tests.unit.services.cli.fleet.unreaped_fleet", str(home), what],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


def test_a_process_that_nobody_reaps_is_not_waited_for(tmp_path: Path) -> None:
    assert said_of_left(tmp_path, "zombie") == "zombie"


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    assert said_of_left(tmp_path, "survivor") == str(-signal.SIGKILL)
