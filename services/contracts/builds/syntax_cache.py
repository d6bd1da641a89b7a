"""What files of sources say, kept from one process to the next: to parse them all takes a second.

Known by the bytes of each file, so that none is ever out of date, in a folder beside Python's own
bytecode. Where that cannot be written, and where Python writes none, each process parses.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import TypeAdapter

# Several times the sources that count: those of older revisions are left out at last.
MOST: Final = 2000
_FILE: Final = "smelt_syntax.json"


class Syntax(NamedTuple):
    """What one file says.

    Attributes:
        digest: of its syntax tree.
        imports: names that its statements import.
        uses_strings: whether it imports by strings too.
    """

    digest: str
    imports: tuple[str, ...]
    uses_strings: bool


_KEPT: Final = TypeAdapter(dict[str, Syntax])


class SyntaxCache:
    """Of the sources below one folder."""

    def __init__(self, package: Path) -> None:
        """Read what is kept; nothing, where that is damaged.

        Args:
            package: a folder of sources, whose `__pycache__` keeps it.
        """
        self._path = package / "__pycache__" / _FILE
        self._kept: dict[str, Syntax] = {}
        self._is_new = False
        with suppress(OSError, ValueError):
            self._kept = _KEPT.validate_json(self._path.read_bytes())

    def of(self, path: Path, parse: Callable[[bytes], Syntax]) -> Syntax:
        """What a file says, parsed where its bytes are not known."""
        data = path.read_bytes()
        key = hashlib.sha256(data).hexdigest()
        if key not in self._kept:
            self._kept[key] = parse(data)
            self._is_new = True
        return self._kept[key]

    def save(self) -> None:
        """Keep what was parsed, where this process may."""
        if not self._is_new or sys.dont_write_bytecode:
            return
        newest = dict(list(self._kept.items())[-MOST:])
        own = self._path.with_suffix(f".{os.getpid()}")
        try:
            own.write_bytes(_KEPT.dump_json(newest))
            # At once: another process reads the old file or the new one.
            own.replace(self._path)
        except OSError:
            with suppress(OSError):
                own.unlink(missing_ok=True)
        self._is_new = False
