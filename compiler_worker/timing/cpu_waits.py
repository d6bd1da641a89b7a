"""How long this process's threads waited for a CPU that other processes used."""

import os
from contextlib import suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NS = 1e-9


def waited_for_cpu_s() -> float:
    """Seconds that the threads of this process were ready to run and did not, all together.

    Linux counts them (Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat); 0 where
    nothing does.
    """
    threads: list[Path] = []
    with suppress(OSError):
        threads = list(_THREADS.iterdir())
    return _NS * sum(map(_waited_ns, threads))


def _waited_ns(thread: Path) -> int:
    # It may have ended meanwhile; open() of a file object would take as long again.
    with suppress(OSError, IndexError, ValueError):
        descriptor = os.open(f"{thread}/schedstat", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 100).split()[1])
        finally:
            os.close(descriptor)
    return 0
