"""What sources say, kept between processes: never out of date, and never in the way."""

import sys
from pathlib import Path

import pytest

from services.contracts.builds.syntax_cache import MOST, Syntax, SyntaxCache


class Parser:
    """Counts what it parses."""

    def __init__(self) -> None:
        self.parsed: list[bytes] = []

    def __call__(self, data: bytes) -> Syntax:
        self.parsed.append(data)
        return Syntax(data.decode(), ("a.b",), uses_strings=False)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "one.py").write_text("one")
    return tmp_path


def kept(package: Path) -> Path:
    return package / "__pycache__" / "smelt_syntax.json"


def once(package: Path, parser: Parser) -> Syntax:
    """As one process does it."""
    cache = SyntaxCache(package)
    found = cache.of(package / "one.py", parser)
    cache.save()
    return found


def test_the_next_process_does_not_parse(package: Path) -> None:
    parser = Parser()
    assert once(package, parser) == once(package, parser) == Syntax("one", ("a.b",), False)
    assert parser.parsed == [b"one"]


def test_other_bytes_are_parsed_whatever_the_file_s_time(package: Path) -> None:
    parser = Parser()
    once(package, parser)
    (package / "one.py").write_text("two")
    assert once(package, parser).digest == "two"
    (package / "one.py").write_text("one")
    assert once(package, parser).digest == "one"
    assert parser.parsed == [b"one", b"two"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"a": 1}', b'{"a": ["d", "imports", false]}', b"\xff\x00", b"null"],
    ids=["empty", "cut off", "a list", "a number", "a word for words", "no text", "null"],
)
def test_a_damaged_file_is_parsed_anew(package: Path, damage: bytes) -> None:
    kept(package).write_bytes(damage)
    parser = Parser()
    assert once(package, parser) == once(package, parser)
    assert parser.parsed == [b"one"]


def test_nothing_is_written_where_python_writes_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    once(package, Parser())
    assert not kept(package).exists()


def test_a_folder_that_takes_no_files_is_no_error(package: Path) -> None:
    (package / "__pycache__").rmdir()
    assert once(package, Parser()).digest == "one"
    assert [each.name for each in package.iterdir()] == ["one.py"]


def test_it_does_not_grow_for_ever(package: Path) -> None:
    cache = SyntaxCache(package)
    for number in range(MOST + 10):
        (package / "one.py").write_text(str(number))
        cache.of(package / "one.py", Parser())
    cache.save()
    parser = Parser()
    assert once(package, parser).digest == str(MOST + 9)
    (package / "one.py").write_text("0")
    once(package, parser)
    assert parser.parsed == [b"0"]
