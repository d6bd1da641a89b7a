"""What is kept on a disk to save time: written whole, and held within bounds of bytes and age."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from services.contracts.store.scratch import scratch_folder

logger = logging.getLogger(__name__)

# What is younger may be in the making, or wanted by a process that was just given its name.
YOUNG_S = 3600.0
STAGING = ".staging-"
_Kept = TypeVar("_Kept")


class Entry(NamedTuple):
    """A kept file or folder, and when it was used last."""

    path: Path
    used_s: float
    num_bytes: int


def read_kept(path: Path, read: Callable[[Path], _Kept]) -> _Kept | None:
    """What a file holds, which then counts as used now; None where it is missing or damaged.

    Args:
        path: of the file.
        read: its reader; may raise anything.
    """
    try:
        kept = read(path)
        # Not every disk keeps itself when a file was read.
        os.utime(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # an empty file is an EOFError to numpy, others are whatever
        logger.warning("kept file %s is damaged (%s); it is made again", path, error)
        return None
    return kept


def keep(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, then rename it; a full disk costs time and nothing else.

    Args:
        path: of the file; its folder need not exist.
        write: given a path of the same name in another folder.
    """
    try:
        with scratch_folder(path.parent, STAGING, abandoned=f"{STAGING}*") as folder:
            part = folder / path.name
            write(part)
            # Two processes may make the same: the later rename puts an equal one in place.
            part.replace(path)
    except OSError as error:
        logger.warning("%s is not kept: %s", path, error)


def entries(paths: Iterable[Path]) -> Iterator[Entry]:
    """Those of some files and folders that are there."""
    for path in paths:
        with suppress(FileNotFoundError):  # another process removes some too
            files = [path, *path.rglob("*")] if path.is_dir() else [path]
            num_bytes = sum(each.lstat().st_size for each in files)
            yield Entry(path, path.lstat().st_mtime, num_bytes)


def remove_oldest(
    found: Iterable[Entry], *, max_bytes: int, max_age_s: float, young_s: float = YOUNG_S
) -> list[Path]:
    """Remove what was not used for an age, and the oldest while there is too much.

    Args:
        found: in any order.
        max_bytes: of all together.
        max_age_s: since its last use; what is older is removed at any size.
        young_s: what was used since stays also beyond `max_bytes`.

    Returns:
        The removed paths, newest first.
    """
    now_s = time.time()
    num_bytes = 0
    removed = []
    # Newest first: what is then beyond the bound is the oldest.
    for entry in sorted(found, key=lambda each: each.used_s, reverse=True):
        num_bytes += entry.num_bytes
        age_s = now_s - entry.used_s
        if age_s > max_age_s or (num_bytes > max_bytes and age_s > young_s):
            num_bytes -= entry.num_bytes
            _remove(entry.path)
            removed.append(entry.path)
    return removed


def _remove(path: Path) -> None:
    if path.is_dir():
        # Under another name first: no reader may find a part of it.
        gone = path.with_name(f"{STAGING}removed-{path.name}")
        with suppress(OSError):
            path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
