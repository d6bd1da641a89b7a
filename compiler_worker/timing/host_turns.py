"""Gives timings the host for themselves, where several builds share it.

Builds and proofs work beside each other. What is timed beside them has no verdict, as its threads
wait for CPUs: so timings wait until the others are between two steps, and these wait for it. The
locks are of files below the cache folder, which all builds of a host share, and end with their
process.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def beside_others(cache_dir: Path) -> Iterator[None]:
    """Work on this host beside others, once no timing does or waits to."""
    with _held(cache_dir, fcntl.LOCK_SH):
        yield


@contextmanager
def alone(cache_dir: Path) -> Iterator[None]:
    """Have this host for oneself, once those that work have finished their step."""
    with _held(cache_dir, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(cache_dir: Path, kind: int) -> Iterator[None]:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _opened(cache_dir / "host.gate") as gate, _opened(cache_dir / "host.work") as work:
        # Who waits for the host alone waits inside the gate, so that those who come later do not
        # keep it for ever.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(work, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Not left to the end of the file: a process that was forked meanwhile has it too.
            fcntl.flock(work, fcntl.LOCK_UN)


def _opened(path: Path) -> IO[bytes]:
    return path.open("ab")
