"""Folders that one attempt works in: gone when it ends, also when its worker is killed."""

from contextlib import AbstractContextManager
from pathlib import Path

from services.contracts.store.scratch import scratch_folder


def work_folder(parent: Path, prefix: str) -> AbstractContextManager[Path]:
    """A folder below an absolute parent that holds nothing else; those of the dead go."""
    return scratch_folder(parent, prefix, abandoned="*")
