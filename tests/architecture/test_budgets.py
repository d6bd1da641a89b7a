"""The budgets of the style: file and function length, docstrings, forbidden words and forms."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "services" / "pb"
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FILE_LINES = 110
MAX_FILES = 25
SOURCES = sorted(
    path
    for package in ("services", "compiler_worker")
    for path in (ROOT / package).rglob("*.py")
    if GENERATED not in path.parents
)
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[str, ast.Module], list[str]]


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


def too_long(text: str, tree: ast.Module) -> list[str]:
    num_lines = text.count("\n")
    lengths = {
        f"{node.name} at line {node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in functions(tree)
    }
    found = [f"{name}: {n} lines" for name, n in lengths.items() if n > MAX_FUNCTION_LINES]
    return found + ([f"{num_lines} lines"] if num_lines > MAX_FILE_LINES else [])


def silent(_: str, tree: ast.Module) -> list[str]:
    found = [] if ast.get_docstring(tree) else ["the module"]
    return found + [
        f"{node.name} at line {node.lineno}"
        for node in public_definitions(tree)
        if not is_overload(node) and not ast.get_docstring(node)
    ]


def left_for_later(text: str, _: ast.Module) -> list[str]:
    return re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b|raise NotImplementedError", text)


def unplain(text: str, _: ast.Module) -> list[str]:
    """Words in whose place what happens can be said in technical terms."""
    return re.findall(r"\b(?:nobody|whoever|by itself|is told by)\b", text, re.I)


def reads_of_the_environment(_: str, tree: ast.Module) -> list[str]:
    """Elsewhere than in settings a value is given as an argument."""
    return [
        f"line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("os.getenv", "os.environ.get", "environ.get", "getenv")
    ]


def not_formatted(text: str, tree: ast.Module) -> list[str]:
    """The formatter lays out all code: no budget is met without it."""
    return packed(tree) + re.findall("fmt: .*", text)


RULES = (too_long, silent, left_for_later, unplain, reads_of_the_environment, not_formatted)
EXEMPT: dict[Rule, tuple[str, ...]] = {
    reads_of_the_environment: ("settings.py", "__main__.py"),
    # What the demo's model reads.
    unplain: ("sentences.py",),
}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[str]]]:
    """Faults by rule and file: all are read once, as there are many."""
    faults: dict[str, dict[str, list[str]]] = {rule.__name__: {} for rule in RULES}
    for path in SOURCES:
        text = path.read_text()
        tree = ast.parse(text)
        for rule in RULES:
            if path.name not in EXEMPT.get(rule, ()) and (each := rule(text, tree)):
                faults[rule.__name__][name_of(path)] = each
    return faults


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES])
def test_no_file_breaks_a_rule(found: dict[str, dict[str, list[str]]], rule: str) -> None:
    assert found[rule] == {}


@pytest.mark.parametrize(
    ("rule", "text", "fault"),
    [
        (too_long, "x = 1\n" * 351, "351 lines"),
        (too_long, "def f():\n" + "    x = 1\n" * 60, "f at line 1: 61 lines"),
        (silent, "x = 1\n", "the module"),
        (silent, '"""A."""\nclass A: ...\n', "A at line 2"),
        (left_for_later, "# TO" + "DO: all\n", "TO" + "DO"),
        (unplain, "# By itself.\n", "By itself"),
        (reads_of_the_environment, "x = os.environ.get('A')\n", "line 1"),
        (not_formatted, "a = 1  # fmt: skip\n", "fmt: skip"),
    ],
    ids=["file", "function", "module", "class", "later", "words", "environment", "format"],
)
def test_what_breaks_a_rule_is_found(rule: Rule, text: str, fault: str) -> None:
    assert rule(text, ast.parse(text)) == [fault]


def test_packed_assignments_are_found() -> None:
    text = "a, b = 1, x\nself.a, (b, c) = None, y()\na, b = b, a\na, b = y()\na = 1, 2\n"
    assert packed(ast.parse(text)) == [
        "line 1: a, b = (1, x)",
        "line 2: self.a, (b, c) = (None, y())",
    ]


def test_most_files_are_small() -> None:
    lengths = [path.read_text().count("\n") for path in SOURCES if path.name != "__init__.py"]
    assert median(lengths) <= MAX_MEDIAN_FILE_LINES


def test_no_folder_has_many_files() -> None:
    tests, pages = (ROOT / "tests").rglob("*.py"), (ROOT / "docs").rglob("*.md")
    results = (ROOT / "tests/benchmarks/results").rglob("*.md")
    counts = Counter(name_of(path.parent) for path in (*SOURCES, *tests, *pages, *results))
    assert {folder: num for folder, num in counts.items() if num > MAX_FILES} == {}
