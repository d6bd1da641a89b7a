"""What people read: words in brackets are words, never markup."""

import pytest
from rich.console import Console

from services.cli.output import progress
from services.cli.output import show as output

BRACKETED = "cannot open [/usr/lib/x.so]: expected [batch, 4]"


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console(record=True, width=160, force_terminal=True)
    for module, name in ((output, "console"), (output, "error_console")):
        monkeypatch.setattr(module, name, console)
    monkeypatch.setattr(progress, "error_console", console)
    return console


def test_a_table_shows_words_in_brackets(console: Console) -> None:
    output.print_table("t", ("reason",), [(BRACKETED,)])
    assert BRACKETED in console.export_text()


def test_an_error_shows_words_in_brackets(console: Console) -> None:
    output.print_error(BRACKETED)
    assert console.export_text() == f"error: {BRACKETED}\n"


def test_progress_shows_words_in_brackets(console: Console) -> None:
    with progress.Steps(is_quiet=False).step("build") as line:
        line.update(BRACKETED)
    assert BRACKETED in console.export_text()
