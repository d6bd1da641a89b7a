"""What one check of `smelt doctor` found."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_WIDTH = 80
_INDENT = " " * 23


class Level(StrEnum):
    """How bad it is; a problem keeps a fleet from starting or serving."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        check: what was looked at.
        found: what is there.
        wanted: what should be there; "" where that is so.
        fix: the command, or else words, that change it.
    """

    check: str
    found: str
    level: Level = Level.OK
    wanted: str = ""
    fix: str = ""

    def lines(self) -> Iterator[str]:
        """For people, in 80 columns; a command stays in one line."""
        head = f"{self.level:<8} {self.check:<13}"
        wanted = [f"wanted: {self.wanted}"] if self.wanted else []
        for number, text in enumerate([self.found, *wanted]):
            yield from textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=_INDENT if number else f"{head} ",
                subsequent_indent=_INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )
        if self.fix:
            yield f"{_INDENT}fix: {self.fix}"
