"""Gives timings exclusive use of the host, where several builds share it.

Builds and proofs run beside each other. What is timed beside them has no verdict, as its threads
wait for CPUs: so a timing waits until the others are between two steps, and they wait until it
ends. The locks are of files below the cache folder, which all builds of a host share; the kernel
releases those of a process that ends.

The wait is a stage of its own: it counts neither for a limit on time nor as time of the step.
So take a turn before the stage of the step begins.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from compiler_worker.children.child import Events
from compiler_worker.children.requests import Stage


@contextmanager
def beside_others(cache_dir: Path, events: Events) -> Iterator[None]:
    """Shared use of this host, once no timing has it or waits for it."""
    with _held(
        cache_dir, fcntl.LOCK_SH, events, "until another build on this host has timed its engine"
    ):
        yield


@contextmanager
def alone(cache_dir: Path, events: Events) -> Iterator[None]:
    """Exclusive use of this host, once those that share it have finished their step."""
    with _held(
        cache_dir, fcntl.LOCK_EX, events, "until other builds on this host have ended their step"
    ):
        yield


@contextmanager
def _held(cache_dir: Path, kind: int, events: Events, awaited: str) -> Iterator[None]:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _opened(cache_dir / "host.gate") as gate, _opened(cache_dir / "host.work") as work:
        if not _is_taken(gate, work, kind | fcntl.LOCK_NB):
            with events.stage(Stage.WAIT, awaited):
                _is_taken(gate, work, kind)
        try:
            yield
        finally:
            # Not left to the closing of the file: a process that was forked meanwhile has it too.
            fcntl.flock(work, fcntl.LOCK_UN)


def _is_taken(gate: IO[bytes], work: IO[bytes], kind: int) -> bool:
    """Lock `work`; False where that would have to wait and must not."""
    try:
        # A timing waits with the gate locked: otherwise those that come later could keep it
        # waiting for ever.
        fcntl.flock(gate, fcntl.LOCK_EX | kind & fcntl.LOCK_NB)
        fcntl.flock(work, kind)
    except BlockingIOError:
        return False
    fcntl.flock(gate, fcntl.LOCK_UN)
    return True


def _opened(path: Path) -> IO[bytes]:
    return path.open("ab")
