"""How long this process's threads computed, and waited for a CPU that others used."""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NS = 1e-9


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Seconds since each thread began.

    Attributes:
        computed, waited: by thread: it ran, and it was ready to run and did not.
    """

    computed: Mapping[str, float]
    waited: Mapping[str, float]

    def busiest_other_since(self, before: "CpuTimes") -> float:
        """For how long the thread ran that did so longest, of all but the calling one."""
        own = str(threading.get_native_id())
        others = {thread: each for thread, each in self.computed.items() if thread != own}
        return max(_since(before.computed, others), default=0.0)

    def waited_since(self, before: "CpuTimes") -> float:
        """For how long threads waited, all together; those that have ended are left out."""
        return sum(_since(before.waited, self.waited))


def cpu_times() -> CpuTimes:
    """The times of all threads of this process.

    Linux counts them (Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat); there are
    none where nothing does.
    """
    threads: list[Path] = []
    with suppress(OSError):
        threads = list(_THREADS.iterdir())
    found = {thread.name: times for thread in threads if (times := _times(thread))}
    return CpuTimes(
        computed={thread: times[0] for thread, times in found.items()},
        waited={thread: times[1] for thread, times in found.items()},
    )


def _since(before: Mapping[str, float], after: Mapping[str, float]) -> list[float]:
    # The number of a thread that has ended may be that of another one now.
    return [max(each - before.get(thread, 0.0), 0.0) for thread, each in after.items()]


def _times(thread: Path) -> list[float]:
    # It may have ended meanwhile; open() of a file object would take as long again.
    with suppress(OSError, ValueError):
        descriptor = os.open(f"{thread}/schedstat", os.O_RDONLY)
        try:
            return [_NS * int(each) for each in os.read(descriptor, 100).split()[:2]]
        finally:
            os.close(descriptor)
    return []
