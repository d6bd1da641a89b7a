"""Where torch keeps what it compiled: in a folder of Smelt's own cache, within bounds.

By default torch writes to the temporary folder of the machine and removes nothing: 150 MB for
each precompiled header alone, and new ones with each version of torch or of the compiler.
"""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from services.contracts.store.kept_files import YOUNG_S, entries, remove_oldest
from services.engines.caches.unfinished import remove_unfinished

logger = logging.getLogger(__name__)

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# Some five headers of one torch, and the code of some hundred engines.
MAX_CACHE_BYTES = 2 * 2**30
MAX_AGE_S = 30 * 24 * 3600.0


def compile_cache(cache_dir: Path) -> Path:
    """The folder below Smelt's cache."""
    return cache_dir.absolute() / "inductor"


def use_compile_cache(cache_dir: Path) -> None:
    """Have this process and its children compile into that folder; before torch compiles.

    A folder that the environment names already stays: then its owner keeps it in bounds.
    """
    os.environ.setdefault(_VARIABLE, str(compile_cache(cache_dir)))


def prepare_compile_cache(cache_dir: Path) -> None:
    """As `use_compile_cache`, after bringing the folder within its bounds."""
    tidy_compile_cache(cache_dir)
    use_compile_cache(cache_dir)


def keep_headers_in_cache() -> None:
    """Have precompiled headers kept beside the rest; call it when torch is about to compile.

    Their folder is a constant of torch's module, which no setting names; where a process has
    compiled into another one, torch remembers headers that may be gone with it.
    """
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = os.path.join(cache_dir(), "precompiled_headers")  # noqa: PTH118 - torch takes a str
    if folder != codecache._HEADER_DIR:  # noqa: SLF001
        codecache._precompile_header.cache_clear()  # noqa: SLF001
    codecache._HEADER_DIR = folder  # noqa: SLF001
    codecache._HEADER_LOCK_DIR = os.path.join(folder, "locks")  # noqa: PTH118, SLF001


def tidy_compile_cache(
    cache_dir: Path, *, max_bytes: int = MAX_CACHE_BYTES, max_age_s: float = MAX_AGE_S
) -> None:
    """Remove unfinished files, files that were compiled long ago, and the oldest beyond a size.

    Processes that run such code have it loaded; a removed file is compiled again when it is wanted.

    Args:
        cache_dir: Smelt's cache folder; torch's files are in a folder within it.
        max_bytes: of all files together; files younger than an hour stay also beyond it.
        max_age_s: since a file was last modified.
    """
    root = compile_cache(cache_dir)
    # First: what was cut short is useless at any age, and the bounds below spare young files.
    for path in remove_unfinished(root):
        logger.warning("%s is incomplete, as its compiler ended; compiling it again", path)
    files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    remove_oldest(entries(files), max_bytes=max_bytes, max_age_s=max_age_s)
    _remove_empty(root, time.time())


def _remove_empty(root: Path, now_s: float) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        path = Path(folder)
        # One that is filled, or was taken away, stays as it is.
        with suppress(OSError):
            if path != root and now_s - path.stat().st_mtime > YOUNG_S:
                path.rmdir()
