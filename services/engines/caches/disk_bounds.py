"""Keeps what a cache holds on a disk within bounds of bytes and age."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

# What is younger may be in the making, or wanted by a process that was just given its name.
YOUNG_S = 3600.0


def remove_oldest(
    found: Iterable[tuple[Path, os.stat_result]], *, max_bytes: int, max_age_s: float
) -> list[Path]:
    """Remove files beyond an age, and the oldest while there is too much.

    Age is since a file was last modified: a reader keeps a file by touching it.

    Args:
        found: paths with their status, in any order.
        max_bytes: of all files together; files younger than `YOUNG_S` stay also beyond it.
        max_age_s: older files are removed at any size.

    Returns:
        The removed paths, newest first.
    """
    now_s = time.time()
    num_bytes = 0
    removed = []
    # Newest first: what is then beyond the bound is the oldest.
    for path, stat in sorted(found, key=lambda each: each[1].st_mtime, reverse=True):
        num_bytes += stat.st_size
        age_s = now_s - stat.st_mtime
        if age_s > max_age_s or (num_bytes > max_bytes and age_s > YOUNG_S):
            num_bytes -= stat.st_size
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed
