"""A table as text for people: what a report is made of beside its lines."""

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """Rows of cells under columns, with a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
