"""Folders that one process works in: gone when it ends, however it ends.

A process that is killed cannot clean up, and what it leaves may take many gigabytes. So each
folder is locked by its process, and the next one removes those whose lock is free.
"""

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

# Between making a folder and locking it lies a moment; nothing this young is removed.
_YOUNG_S = 60.0


@contextmanager
def scratch_folder(parent: Path, prefix: str, abandoned: str) -> Iterator[Path]:
    """A folder below an absolute parent, removed afterwards, with those of ended processes.

    Args:
        parent: made when it is not there.
        prefix: of the folder's name.
        abandoned: glob of the names that only such folders have.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent, abandoned)
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(lock)


def _remove_abandoned(parent: Path, pattern: str) -> None:
    for folder in parent.glob(pattern):
        # Another process may do the same, or end and take its folder away.
        with suppress(FileNotFoundError, NotADirectoryError):
            if time.time() - folder.stat().st_mtime > _YOUNG_S and _is_free(folder):
                logger.info("removing %s, which a process left behind when it was killed", folder)
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(folder: Path) -> bool:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
