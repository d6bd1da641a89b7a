"""What commands print: text and tables for people, or one JSON document for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_ratio

# A pipe has no width; wide tables keep one row per line there.
_PIPE_WIDTH = 160


def _console(*, is_error: bool) -> Console:
    # A factory may be called `module:factory`, which Rich would print as a picture of one.
    console = Console(stderr=is_error, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


console = _console(is_error=False)
error_console = _console(is_error=True)


# Text may be a generator: with --json it is never computed.
def show(document: Any, text: Iterable[str | Table], *, as_json: bool) -> None:
    """Print what a command found: a document for programs, else its text for people."""
    if as_json:
        print_json(document)
        return
    for part in text:
        if isinstance(part, Table):
            print_table(*part)
        else:
            print_line(part)


def print_line(text: str) -> None:
    """Text as it is, neither wrapped nor read as markup; nothing for ""."""
    if text:
        console.print(text, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, or one line saying that there is nothing."""
    if not rows:
        console.print(f"{title}: none")
        return
    table = rich_table.Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Not as markup: a reason or a shape may hold [words in brackets].
        table.add_row(*map(Text, row))
    console.print(table)


def print_error(message: str) -> None:
    """Print to standard error why a command failed."""
    error_console.print(Text("error: ", "bold red").append(message, "default"), soft_wrap=True)


def print_json_error(kind: str, message: str) -> None:
    """Print the same for a program, as one JSON document on standard error.

    Standard output keeps what the command gave before it failed: `smelt up` gives some.
    """
    json.dump({"error": {"kind": kind, "message": message}}, sys.stderr, ensure_ascii=False)
    sys.stderr.write("\n")


def times(ratio: float | None, *, is_wild: bool = False) -> str:
    """A ratio as people read it: `1.25x`; `-` for none, `?` for one of wild figures."""
    if ratio is None:
        return "-"
    return "?" if is_wild else f"{readable_ratio(ratio)}x"
