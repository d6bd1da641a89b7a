"""No six lines of product code stand twice as the same text.

A line counts without its indentation and its comment. Blank lines, imports and docstrings do not
count: what a module needs, and what is said of it, may be the same as elsewhere.
"""

import ast
import io
import tokenize
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "services" / "pb"
SOURCES = sorted(
    path
    for package in ("services", "compiler_worker")
    for path in (ROOT / package).rglob("*.py")
    if GENERATED not in path.parents
)
MIN_LINES = 6
IMPORTS = ast.Import | ast.ImportFrom
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A line of code, with its number among all lines and among those that count."""

    source: str
    number: int
    index: int

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


def code_lines(text: str) -> list[tuple[int, str]]:
    """The lines that count, with their numbers."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node = node.body[0]
        elif not isinstance(node, IMPORTS):
            continue
        left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    found = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    return [(number, line) for number, line in found if line and number not in left_out]


def duplicates(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Each run of lines that stands twice, with both places; `texts` are names and sources."""
    first_places: dict[tuple[str, ...], Place] = {}
    pairs: list[tuple[Place, Place]] = []
    for source, text in texts:
        lines = code_lines(text)
        for index in range(len(lines) - MIN_LINES + 1):
            window = tuple(line for _, line in lines[index : index + MIN_LINES])
            place = Place(source, lines[index][0], index)
            first = first_places.setdefault(window, place)
            if first is not place:
                pairs.append((first, place))
    # Windows that follow each other in both places are one longer run.
    runs = groupby(
        pairs, lambda pair: (pair[0].source, pair[1].source, pair[1].index - pair[0].index)
    )
    return [_words(list(run)) for _, run in runs]


def _words(run: list[tuple[Place, Place]]) -> str:
    return f"{len(run) + MIN_LINES - 1} lines from {run[0][0]} stand again from {run[0][1]}"


def test_no_six_lines_stand_twice() -> None:
    found = duplicates((str(path.relative_to(ROOT)), path.read_text()) for path in SOURCES)
    assert not found, "make each one function or one class:\n" + "\n".join(found)


def test_a_run_is_found_whatever_stands_around_it() -> None:
    six = [f"first{n} = {n}" for n in range(6)]
    one = '"""Docs."""\nimport os\n' + "\n".join(six)
    other = "def other():\n    '''Docs.'''\n" + "\n\n".join(f"    {line}  # why" for line in six)
    found = duplicates([("one.py", one), ("other.py", other)])
    assert found == ["6 lines from one.py:3 stand again from other.py:3"]
    seven = "\n".join([*six, "last = 7"])
    assert duplicates([("one.py", f"{seven}\n{seven}")]) == [
        "7 lines from one.py:1 stand again from one.py:8"
    ]


def test_five_lines_imports_and_docstrings_may_stand_twice() -> None:
    five = "\n".join(f"first{n} = {n}" for n in range(5))
    assert not duplicates([("one.py", five), ("other.py", five)])
    imports = "from a import (\n    b,\n    c,\n    d,\n    e,\n    f,\n)\n"
    docs = '"""One.\n\nTwo.\n\nThree.\nFour.\nFive.\nSix.\nSeven.\n"""\n'
    assert not duplicates([("one.py", docs + imports), ("other.py", docs + imports)])
