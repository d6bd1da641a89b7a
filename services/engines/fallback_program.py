"""Where a machine keeps the programs that fallbacks compile: one file for replicas and proofs."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from services.contracts.build_key import BUILD_REVISION
from services.contracts.document import canonical_json
from services.contracts.manifest import MasterRecord
from services.contracts.recipe import Recipe
from services.contracts.scratch import scratch_folder
from services.engines.toolchain import installed_version

_STAGING = ".staging-"


def kept_program(
    cache_dir: Path, master: MasterRecord, recipe: Recipe, export: Callable[[Path], None]
) -> Path:
    """A master as an exported program; `export` writes it when it is not there yet."""
    # Buckets bound the program's dimensions; torch may not read another version's file; another
    # importer makes another program.
    buckets = canonical_json([bucket.model_dump(mode="json") for bucket in recipe.buckets])
    asked = hashlib.sha256(buckets).hexdigest()
    made_by = f"r{BUILD_REVISION}-torch{installed_version('torch')}"
    name = f"{master.digest}-{asked}-{made_by}.pt2"
    target = cache_dir / "programs" / name
    if target.is_file():
        return target
    _forget_former(target.parent, made_by)
    with scratch_folder(target.parent, _STAGING, abandoned=f"{_STAGING}*") as staging:
        draft = staging / "program.pt2"
        export(draft)
        # Another process of this machine may do the same: one rename, equal content.
        draft.replace(target)
    return target


def _forget_former(folder: Path, made_by: str) -> None:
    """Remove what another importer or torch made: each holds whole weights, and none is read."""
    for path in folder.glob("*.pt2"):
        if not path.name.endswith(f"-{made_by}.pt2"):
            path.unlink(missing_ok=True)
