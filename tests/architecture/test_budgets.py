"""The budgets of the style: file and function length, docstrings, forbidden words and forms."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "services" / "pb"
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FILE_LINES = 130
SOURCES = sorted(
    path
    for package in ("services", "compiler_worker")
    for path in (ROOT / package).rglob("*.py")
    if GENERATED not in path.parents
)
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def public_definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """What is public: in the module and in its public classes, not inside functions."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def is_overload(node: Definition) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def packed(tree: ast.Module) -> list[str]:
    """Assignments of several values to as many places in one line; a swap may be one."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple | ast.List):
            continue
        values = {ast.unparse(each) for each in node.value.elts}
        for target in node.targets:
            if not isinstance(target, ast.Tuple | ast.List):
                continue
            if values != {ast.unparse(each) for each in target.elts}:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_there_are_sources() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_within_their_budgets(path: Path) -> None:
    text = path.read_text()
    num_lines = text.count("\n")
    assert num_lines <= MAX_FILE_LINES, f"{num_lines} lines"
    too_long = {
        f"{node.name} at line {node.lineno}": length
        for node in functions(ast.parse(text))
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not too_long


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_everything_public_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    silent = [
        f"{node.name} at line {node.lineno}"
        for node in public_definitions(tree)
        if not is_overload(node) and not ast.get_docstring(node)
    ]
    assert ast.get_docstring(tree), "the module has no docstring"
    assert not silent


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text()
    found = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b|raise NotImplementedError", text)
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_environment_is_read_in_settings_only(path: Path) -> None:
    if path.name in ("settings.py", "__main__.py"):
        return
    reads = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("os.getenv", "os.environ.get", "environ.get", "getenv")
    ]
    assert not reads, f"lines {reads}: give the value as an argument"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_one_statement_assigns_one_value(path: Path) -> None:
    text = path.read_text()
    assert not packed(ast.parse(text))
    assert "fmt: " not in text, "the formatter lays out all code: no budget is met without it"


def test_packed_assignments_are_found() -> None:
    text = "a, b = 1, x\nself.a, (b, c) = None, y()\na, b = b, a\na, b = y()\na = 1, 2\n"
    assert packed(ast.parse(text)) == [
        "line 1: a, b = (1, x)",
        "line 2: self.a, (b, c) = (None, y())",
    ]


def test_most_files_are_small() -> None:
    lengths = [path.read_text().count("\n") for path in SOURCES if path.name != "__init__.py"]
    assert median(lengths) <= MAX_MEDIAN_FILE_LINES
