"""Processes of a machine compile one program one after the other: all but the first read its code.

Replicas of a model start together, and its proofs time the same fallback; torch's cache, which
they share, has the code once one of them is done.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

# A compiler takes minutes at most. A process that waited longer compiles too: the other one hangs.
LONGEST_WAIT_S: Final = 600.0
_PERIOD_S: Final = 0.1


@contextmanager
def compile_turn(program_path: Path, longest_wait_s: float = LONGEST_WAIT_S) -> Iterator[None]:
    """Wait until no other process compiles a program; others wait until the block ends.

    The lock is of the program's file: the kernel releases that of a process that was killed.
    """
    with program_path.open("rb") as program:
        _lock(program, time.monotonic() + longest_wait_s)
        try:
            yield
        finally:
            # Not left to the closing of the file: Inductor's own processes have it too.
            fcntl.flock(program, fcntl.LOCK_UN)


def _lock(program: IO[bytes], until_s: float) -> None:
    while True:
        try:
            return fcntl.flock(program, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return None
        except OSError:
            # Some network file systems lock only what is open for writing: all compile then.
            return None
        time.sleep(_PERIOD_S)  # flock takes no timeout
