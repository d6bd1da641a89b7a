"""Removes what a compiler was killed at: torch takes a library that is there for a whole one.

A process that is ended in the middle of a build (by its limits, by the machine) leaves libraries
and objects without their last bytes, or without any. Torch never writes those anew, so every later
build of the same code would fail at loading it.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

_SUFFIXES = (".so", ".o")
# Of an ELF header of 64 bits: where its table of sections begins, an entry's size, their number.
# Linkers and assemblers write that table last. Source: System V ABI, "ELF Header".
_HEADER = struct.Struct("<4s36xQ10xHH")
_MAGIC = b"\x7fELF"


def remove_unfinished(root: Path) -> list[Path]:
    """Remove cut libraries and objects below a folder of torch's, but those in the making."""
    return [path for path in _code(root) if not _is_whole(path) and _is_removed(path)]


def _code(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names if name.endswith(_SUFFIXES))


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            num_bytes = os.fstat(file.fileno()).st_size
    except FileNotFoundError:  # another process tidies too
        return True
    if len(header) < _HEADER.size:
        return False
    magic, begin, entry_size, num_entries = _HEADER.unpack(header)
    end: int = begin + entry_size * num_entries
    return magic == _MAGIC and begin > 0 and end <= num_bytes


def _is_removed(path: Path) -> bool:
    """Whether no process works on it; torch holds a lock by the code's name while it compiles."""
    locks = path.parent.parent / "locks"
    if not locks.is_dir():
        path.unlink(missing_ok=True)
        return True
    with suppress(Timeout), FileLock(locks / f"{path.name.partition('.')[0]}.lock", timeout=0):
        # It may have been finished since it was looked at.
        if not _is_whole(path):
            path.unlink(missing_ok=True)
            return True
    return False
