"""How much memory this process may take: its container's, or all of the host's.

What of it large requests may take lies here too, as workers share it.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONTAINER_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def usable_memory_bytes(limits: Iterable[Path] = _CONTAINER_LIMITS) -> int:
    """The least of the host's memory and of the limits in files."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in limits:
        # "max" where there is none; the first generation of cgroups has a huge number.
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)


def default_upload_bytes(num_workers: int = 1) -> int:
    """For the large requests of one of so many workers: half of the memory, in equal parts."""
    return max(usable_memory_bytes() // 2 // num_workers, 1)
