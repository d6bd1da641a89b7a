"""How many processors this process may use: of the host, or of a container that has fewer."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


def usable_processors(folder: Path = _CONTROL_GROUP) -> float:
    """By the process's affinity and the quota of its control group, of version 1 or 2.

    Args:
        folder: where the control group is mounted.
    """
    usable = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        usable = min(usable, int(quota) / int(period))
    with suppress(OSError, ValueError):
        quota_us, period_us = (
            int((folder / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
        )
        usable = min(usable, quota_us / period_us) if quota_us > 0 else usable
    return usable
