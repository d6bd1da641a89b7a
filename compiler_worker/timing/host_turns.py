"""Gives timings exclusive use of the host, where several builds share it.

Builds and proofs run beside each other. What is timed beside them has no verdict, as its threads
wait for CPUs: so a timing waits until the others are between two steps, and they wait until it
ends. The locks are of files below the cache folder, which all builds of a host share; the kernel
releases those of a process that ends.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def beside_others(cache_dir: Path) -> Iterator[None]:
    """Shared use of this host, once no timing has it or waits for it."""
    with _held(cache_dir, fcntl.LOCK_SH):
        yield


@contextmanager
def alone(cache_dir: Path) -> Iterator[None]:
    """Exclusive use of this host, once those that share it have finished their step."""
    with _held(cache_dir, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(cache_dir: Path, kind: int) -> Iterator[None]:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _opened(cache_dir / "host.gate") as gate, _opened(cache_dir / "host.work") as work:
        # A timing waits with the gate locked: otherwise those that come later could keep it
        # waiting for ever.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(work, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Not left to the closing of the file: a process that was forked meanwhile has it too.
            fcntl.flock(work, fcntl.LOCK_UN)


def _opened(path: Path) -> IO[bytes]:
    return path.open("ab")
