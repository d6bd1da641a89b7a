"""What one process of a host does at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# What is waited for takes minutes at most. A process that waited longer goes on: the other hangs.
LONGEST_TURN_S: Final = 600.0
_PERIOD_S = 0.1


@contextmanager
def host_turn(path: Path, longest_wait_s: float = LONGEST_TURN_S) -> Iterator[None]:
    """Wait until no other process of this host has its turn; others wait until the block ends.

    Where the file system takes no lock, or the wait takes too long, all go on at once. The kernel
    releases the lock of a process that was killed.

    Args:
        path: of a file or a folder, which all of them lock.
        longest_wait_s: after which the block begins all the same.
    """
    until_s = time.monotonic() + longest_wait_s
    file = -1
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        while not _is_locked(file) and time.monotonic() < until_s:
            time.sleep(_PERIOD_S)  # flock takes no timeout
    try:
        yield
    finally:
        if file >= 0:
            with suppress(OSError):
                # Not left to the closing of the file: processes that were forked have it too.
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
