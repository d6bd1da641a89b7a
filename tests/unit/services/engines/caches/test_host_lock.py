"""One process of a host at a time has its turn, also when one of them is killed or hangs."""

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.engines.caches.host_lock import host_turn

LIMIT_S = 60.0
HOLDER = """
import sys
from pathlib import Path
from services.engines.caches.host_lock import host_turn
with host_turn(Path(sys.argv[1])):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.pt2"
    path.write_bytes(b"program")
    return path


def holder(program: Path) -> subprocess.Popen[bytes]:
    """A process that has the turn until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"has it\n"
    return process


@pytest.mark.parametrize("is_killed", [True, False])
def test_another_process_has_its_turn_after(program: Path, *, is_killed: bool) -> None:
    has_turn = threading.Event()

    def wait_too() -> None:
        with host_turn(program):
            has_turn.set()

    with holder(program) as process:
        waiting = threading.Thread(target=wait_too)
        waiting.start()
        assert not has_turn.wait(0.3)
        if is_killed:
            process.kill()
        else:
            process.communicate()
        assert has_turn.wait(LIMIT_S)
        waiting.join()


def test_it_ends_with_a_fault(program: Path) -> None:
    with pytest.raises(ValueError, match="of a compiler"), host_turn(program):
        raise ValueError("of a compiler")
    with program.open("rb") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_one_that_hangs_is_not_waited_for_for_ever(program: Path) -> None:
    with holder(program) as process:
        with host_turn(program, longest_wait_s=0.2):
            pass
        process.communicate()
