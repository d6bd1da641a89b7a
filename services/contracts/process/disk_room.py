"""Whether something failed for want of room on a disk: no fault of an engine, and tried again."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_WORDS: Final = tuple(map(os.strerror, FULL))
# Libraries write objects of some MiB, and remove what they could not write.
LEAST_FREE_BYTES: Final = 32 * 2**20


def is_of_full_disk(error: BaseException | None, folder: Path | None) -> bool:
    """Whether an error, or one that it was raised for, is of a full disk, or one is full now.

    Args:
        error: libraries wrap the first one, or keep its words alone; None looks at disks alone.
        folder: where was written, beside the folder for temporary files; it need not exist yet.
    """
    while error is not None:
        if getattr(error, "errno", None) in FULL or any(words in str(error) for words in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return any(_is_full(each) for each in (folder, Path(tempfile.gettempdir())) if each)


def _is_full(folder: Path) -> bool:
    whole = folder.absolute()
    nearest = next(each for each in (whole, *whole.parents) if each.exists())
    found = shutil.disk_usage(nearest)
    # Of some network file systems nothing is known.
    return found.total > 0 and found.free < LEAST_FREE_BYTES
