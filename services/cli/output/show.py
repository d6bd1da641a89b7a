"""What commands print: text and tables for people, or one JSON document for programs."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_ratio

if TYPE_CHECKING:
    from rich.console import Console


_PROGRAM = r"(?:\S*/)?(?:smelt|make|pip|optimum-cli|python[\d.]*) "
_QUOTED = r"""'[^']*'|"[^"]*\""""
# As messages end: `; start one: smelt up`; or a line that is set in, and nothing but a command.
_COMMAND = re.compile(
    rf"^ +{_PROGRAM}.*|(?:(?<=: )|(?<=, then )){_PROGRAM}"
    rf"(?:{_QUOTED}|(?![;:,)](?:\s|$)| \()[^'\"])*"
)
# A command to the next option, which a shell may find on its next line.
_TO_OPTION = re.compile(rf"(?:{_QUOTED}|[^ '\"]| (?!--)|['\"])+")
_INDENT = " " * 4
# The exit code that shells give a command that Ctrl-C ended.
INTERRUPTED = 130
_UNBROKEN = "\xa0"
_CONTINUED = f"{_UNBROKEN}\\ "


class OutputForm(NamedTuple):
    """One JSON document, or text; and of tables every column, none narrower, and no text folded."""

    as_json: bool = False
    is_wide: bool = False


_TEXT: Final = OutputForm()
OUTPUT_FORM: Final = ContextVar("output form", default=_TEXT)


@contextmanager
def output_form(*, as_json: bool = False, is_wide: bool = False) -> Iterator[None]:
    """Meanwhile all is printed so: by the options --json and --wide of the command that runs."""
    before = OUTPUT_FORM.set(OutputForm(as_json, is_wide))
    try:
        yield
    finally:
        OUTPUT_FORM.reset(before)


@cache
def error_console() -> "Console":
    """Standard error for what has colours or changes while it is seen."""
    # Most commands have neither, and start sooner without Rich.
    from rich.console import Console

    # A factory may be called `module:factory`, which Rich would print as a picture of one.
    return Console(stderr=True, highlight=False, emoji=False)


# Text may be a generator: with --json it is never computed.
def show(document: Any, text: Iterable[str | Table], *, is_wide: bool = False) -> None:
    """Print what a command found.

    Args:
        document: for programs.
        text: for people; "" prints nothing.
        is_wide: fold nothing, whatever is asked for.
    """
    if OUTPUT_FORM.get().as_json:
        print_json(document)
        return
    is_wide |= OUTPUT_FORM.get().is_wide
    for part in text:
        if isinstance(part, Table):
            _print_table(part, is_wide=is_wide)
        elif part:
            print_line(part, is_folded=not is_wide)


def print_line(text: str, *, is_folded: bool = False) -> None:
    """Text as it is; or on a terminal folded, with what follows the first line set in."""
    # Programs such as grep take a line for a whole.
    if is_folded and sys.stdout.isatty():
        text = _folded(text)
    typer.echo(text)


def show_entry(document: Any, text: str, *, is_folded: bool = False) -> None:
    """Print one of many as it comes.

    Args:
        document: for programs, on one line.
        text: for people.
        is_folded: fold it on a terminal.
    """
    if OUTPUT_FORM.get().as_json:
        sys.stdout.write(f"{json.dumps(_as_json(document), ensure_ascii=False)}\n")
    else:
        print_line(text, is_folded=is_folded and not OUTPUT_FORM.get().is_wide)
    sys.stdout.flush()


def print_failure(kind: str, words: str) -> None:
    """Why the command failed, as its line asked: the error that it carries has no options."""
    if "--json" in sys.argv[1:]:
        print_json_error(kind, words)
    else:
        print_error(words)


def print_remark(text: str) -> None:
    """Text on standard error, folded in the same way."""
    is_folded = error_console().is_terminal
    error_console().print(_folded(text) if is_folded else text, markup=False, soft_wrap=True)


def _folded(text: str) -> str:
    return "\n".join(map(_folded_line, text.splitlines()))


def _folded_line(line: str) -> str:
    """Lines of the terminal's width, of which a command can be pasted."""
    if len(line) <= text_width():
        return line
    folded = textwrap.fill(
        _COMMAND.sub(lambda found: _unbroken(found[0]), line),
        text_width(),
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return folded.replace(_CONTINUED, " ").replace(_UNBROKEN, " ")


def _unbroken(command: str) -> str:
    """A command on one line, or on several as a shell reads them where one is too short."""
    is_long = len(_INDENT) + len(command) > text_width()
    parts = _TO_OPTION.findall(command) if is_long else [command]
    return _CONTINUED.join(part.replace(" ", _UNBROKEN) for part in parts)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(_as_json(value), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _as_json(value: Any) -> Any:
    """The same, with null in place of NaN and infinities, which JSON lacks."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def text_width() -> int:
    """That of the terminal, or COLUMNS; 80 in a pipe."""
    return shutil.get_terminal_size().columns


def _print_table(table: Table, *, is_wide: bool) -> None:
    title, *lines = table.lines(None if is_wide else text_width())
    typer.secho(title if is_wide else _folded(title), bold=bool(lines))
    for line in lines:
        typer.echo(line)


def print_error(message: str) -> None:
    """Print to standard error why a command failed."""
    _print_labelled("error: ", "bold red", message)


def print_warning(message: str) -> None:
    """Print to standard error what is wrong, though the command did its work."""
    _print_labelled("warning: ", "bold yellow", message)


def _print_labelled(label: str, style: str, message: str) -> None:
    from rich.text import Text

    if error_console().is_terminal:
        # The label stays on the first word's line.
        labelled = f"{label.replace(' ', _UNBROKEN)}{message}"
        message = _folded(labelled).replace(_UNBROKEN, " ").removeprefix(label)
    error_console().print(Text(label, style).append(message, "default"), soft_wrap=True)


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
