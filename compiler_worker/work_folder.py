"""Folders that one attempt works in: gone when it ends, however it ends.

A worker that is killed cannot clean up, and a half-built engine may take many gigabytes. So
each folder is locked by its worker, and the next worker removes those whose lock is free.
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
def work_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder below an absolute parent, removed afterwards, with those of dead workers."""
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.iterdir():
        # Another worker may do the same, or end and take its folder away.
        with suppress(FileNotFoundError, NotADirectoryError):
            if time.time() - folder.stat().st_mtime > _YOUNG_S and _is_free(folder):
                logger.info("removing %s, which a worker that died left behind", folder)
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
