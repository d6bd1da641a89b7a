"""One process of a host checks at a time, also when one of them is killed or hangs."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.engines.caches.passed_checks import PassedChecks

LIMIT_S = 60.0
HOLDER = """
import sys
from pathlib import Path
from services.engines.caches.passed_checks import PassedChecks
with PassedChecks(Path(sys.argv[1])).turn():
    print("has it", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[bytes]:
    """A process that has the turn until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"has it\n"
    return process


@pytest.mark.parametrize("is_killed", [True, False])
def test_another_process_has_its_turn_after(tmp_path: Path, *, is_killed: bool) -> None:
    waits, has_turn = threading.Event(), threading.Event()

    def check_too() -> None:
        waits.set()
        with PassedChecks(tmp_path).turn():
            has_turn.set()

    with holder(tmp_path) as process:
        waiting = threading.Thread(target=check_too)
        waiting.start()
        assert waits.wait(LIMIT_S)
        assert not has_turn.is_set()
        if is_killed:
            process.kill()
        else:
            process.communicate()
        assert has_turn.wait(LIMIT_S)
        waiting.join()


def test_one_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with PassedChecks(tmp_path).turn(longest_wait_s=0.0):
            pass
        process.communicate()


def test_it_is_free_after_a_fault(tmp_path: Path) -> None:
    passed = PassedChecks(tmp_path)
    with pytest.raises(ValueError, match="of a check"), passed.turn():
        raise ValueError("of a check")
    with holder(tmp_path) as process:
        process.communicate()
