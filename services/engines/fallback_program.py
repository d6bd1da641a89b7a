"""Where a machine keeps the programs that fallbacks compile: one file for replicas and proofs."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from services.contracts.manifest import MasterRecord
from services.contracts.recipe import Recipe
from services.contracts.scratch import scratch_folder
from services.engines.toolchain import installed_version

_STAGING = ".staging-"


def kept_program(
    cache_dir: Path, master: MasterRecord, recipe: Recipe, export: Callable[[Path], None]
) -> Path:
    """A master as an exported program; `export` writes it when it is not there yet."""
    # The recipe bounds the program's dimensions; torch may not read another version's file.
    asked = hashlib.sha256(recipe.canonical_json()).hexdigest()
    name = f"{master.digest}-{asked}-torch{installed_version('torch')}.pt2"
    target = cache_dir / "programs" / name
    if target.is_file():
        return target
    with scratch_folder(target.parent, _STAGING, abandoned=f"{_STAGING}*") as staging:
        draft = staging / "program.pt2"
        export(draft)
        # Another process of this machine may do the same: one rename, equal content.
        draft.replace(target)
    return target
