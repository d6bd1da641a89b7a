"""Where a machine keeps the programs that fallbacks compile: one file for replicas and proofs.

Each holds a model's whole weights. Those that were not used for longest go when there is too
much, and are exported again when they are wanted.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from services.contracts.builds.code_digest import code_digest
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket
from services.contracts.store.kept_files import STAGING, entries, remove_oldest
from services.contracts.store.scratch import scratch_folder
from services.engines.device.toolchain import installed_version

_logger = logging.getLogger(__name__)

# Some eighty models of a hundred megabytes, or a few large ones.
MAX_PROGRAMS_BYTES = 8 * 2**30
MAX_AGE_S = 30 * 24 * 3600.0


def kept_program(
    cache_dir: Path,
    master: MasterRecord,
    buckets: Sequence[Bucket],
    export: Callable[[Path], None],
    *,
    max_bytes: int = MAX_PROGRAMS_BYTES,
) -> Path:
    """A master as an exported program for these buckets; exported once per machine.

    Args:
        cache_dir: Smelt's cache folder.
        master: its digest is part of the file's name.
        buckets: bound the program's dimensions; other buckets are another program.
        export: writes the program to a path; called only when the cache has none.
        max_bytes: of all kept programs; each stays for an hour at least, also beyond this.

    Returns:
        The program's `.pt2` file.
    """
    # Buckets bound the program's dimensions; torch may not read another version's file; another
    # importer makes another program.
    shapes = canonical_json([bucket.model_dump(mode="json") for bucket in buckets])
    asked = hashlib.sha256(shapes).hexdigest()
    made_by = f"{importer_code()}-torch{installed_version('torch')}"
    name = f"{master.digest}-{asked}-{made_by}.pt2"
    target = cache_dir / "programs" / name
    if target.is_file():
        # When it was last wanted is what its stay depends on; not every disk keeps that itself.
        with suppress(OSError):
            os.utime(target)
        return target
    _forget_former(target.parent, made_by)
    with scratch_folder(target.parent, STAGING, abandoned=f"{STAGING}*") as staging:
        draft = staging / "program.pt2"
        export(draft)
        # Another process of this machine may do the same: one rename, equal content.
        draft.replace(target)
    found = entries(target.parent.glob("*.pt2"))
    removed = remove_oldest(found, max_bytes=max_bytes, max_age_s=MAX_AGE_S)
    if removed:
        words = ", ".join(path.name[:12] for path in removed)
        _logger.info("programs of fallbacks that were not used for long are removed: %s", words)
    return target


def importer_code() -> str:
    """Digest of the code that makes the graphs of fallbacks from masters."""
    return code_digest("compiler_worker.builders.exported_program")


def _forget_former(folder: Path, made_by: str) -> None:
    """Remove what another importer or torch made: each holds whole weights, and none is read."""
    for path in folder.glob("*.pt2"):
        if not path.name.endswith(f"-{made_by}.pt2"):
            path.unlink(missing_ok=True)
