"""A table as text for people: what a report is made of beside its lines."""

import textwrap
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

_GAP = "  "


class Table(NamedTuple):
    """Rows of cells under columns, with a title.

    Attributes:
        title: names what the rows are.
        columns: their heads.
        rows: cells, as many as there are columns; a cell may have several lines.
        wide: columns that only a wide table has.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    wide: Collection[str] = ()

    def lines(self, width: int | None) -> list[str]:
        """Heads, a rule and the rows, below the title, which says so where there are none.

        Nothing is ever cut: what does not fit is continued on the next line of its column.

        Args:
            width: characters that a line may have; None for every column, each as wide as it is.
        """
        if not self.rows:
            return [f"{self.title}: none"]
        shown = [i for i, name in enumerate(self.columns) if width is None or name not in self.wide]
        cells = [[row[i] for i in shown] for row in (self.columns, *self.rows)]
        widths = _widths(cells, width)
        head, *rows = (_row_lines(row, widths) for row in cells)
        rule = _GAP.join("-" * each for each in widths)
        return [self.title, *head, rule, *(line for row in rows for line in row)]


def _widths(cells: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Of each column: the widest are made narrower first, and words are broken last."""
    columns = list(zip(*cells, strict=True))
    whole = [_longest(line for cell in column for line in cell.splitlines()) for column in columns]
    if width is None:
        return whole
    words = [_longest(word for cell in column for word in cell.split()) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    for least in (words, [1] * len(columns)):
        for most in range(max(whole), 0, -1):
            found = [min(w, max(at_least, most)) for w, at_least in zip(whole, least, strict=True)]
            if sum(found) <= room:
                return found
    return [1] * len(columns)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=1)


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    return [
        _GAP.join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()
        for parts in zip_longest(*columns, fillvalue="")
    ]


def _folded(cell: str, width: int) -> list[str]:
    # A generation and a precision are words that have hyphens.
    fold = partial(textwrap.wrap, width=max(width, 1), break_on_hyphens=False)
    return [part for line in cell.splitlines() for part in fold(line)]
