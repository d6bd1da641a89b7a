"""What docstrings of public functions must have: arguments of many, shapes, and what is raised.

A function with more than two parameters lists them under `Args:`. So does a constructor, or its
class lists them, as attributes where they are such. One whose own body raises says
so, under `Raises:` or in a sentence. Others may: an error that a call lets through is not looked
for here. One that does what another one says may name that in place of both: "see `X`".

One that takes or gives tensors names their shapes, or its class or its module does. Converters and
kernels need not: most take any rank, as the operators of ONNX do.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("compiler_worker", "services")
GENERATED = ROOT / "services" / "pb"
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if GENERATED not in path.parents
)
MOST_UNLISTED = 2
REFERENCE = re.compile(r"\bsee `", re.IGNORECASE)
SAYS_WHAT_IT_RAISES = re.compile(r"\braises?\b|\bsee `", re.IGNORECASE)
OPERATORS = tuple(ROOT / "compiler_worker/onnx_to_fx" / each for each in ("converters", "kernels"))
TENSOR = re.compile(r"\b_?(?:Arrays?|NDArray|ndarray|Tensors?|Float64)\b")
# `[B, T]`, not `list[str]`.
SHAPE = re.compile(r"(?<!\w)\[[^\]]*\]|\bany\s(?:shape|rank)\b")
# Faults of the code itself, which no caller handles.
OWN_FAULTS = {"AssertionError", "NotImplementedError"}
# Their arguments are options, which help texts describe, or they are called without any.
EXEMPT_DECORATORS = {"callback", "cached_property", "command", "overload", "property", "setter"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
EXAMPLE = '''
def load(a, b, c=1):
    raise ValueError

def kept(a, *, b, **c):
    """Keep.

    Args:
        a: x.
        b: y.
    """

def done(a, *b, c):
    """Do.

    Args:
        a: x.
        *b: y.
        c: z.
    """

def again(a, b, c):
    """Load again; see `load`."""
    raise ValueError

@app.command()
def prune(a, b, c): ...

def _own(a, b, c): ...

class Engine(Protocol):
    def run(self, a, b, c):
        """Run."""

class Pool:
    def take(self, a, b):
        def inside():
            raise KeyError
        raise

    def give(self):
        """Give; raises OSError."""
        raise OSError

    def wait(self):
        raise NotImplementedError

class Batch:
    """A batch.

    Attributes:
        a: x.
    """

    def __init__(self, a, b, c):
        """Begin.

        Args:
            b: y.
        """

class Queue:
    def __init__(self, a, b): ...

    def size(self, a: Tensor) -> int:
        """Size, as a list[int]."""

    def first(self, a) -> dict[str, Array]:
        """The first, [1, ...]."""

class _Level:
    def __init__(self, a, b, c): ...
'''


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def decorators(node: Function) -> set[str]:
    """Last parts of their names: `command` of `@app.command("prune")`."""
    calls = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return {ast.unparse(each).rpartition(".")[2] for each in calls}


def is_stub(node: Function, owner: ast.ClassDef | None) -> bool:
    """Whether it is a method of a protocol with one line: those that implement it say the rest."""
    bases = [ast.unparse(base).partition("[")[0] for base in owner.bases] if owner else []
    return "Protocol" in bases and "\n" not in (ast.get_docstring(node) or "")


def public_functions(
    tree: ast.Module | ast.ClassDef,
) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Of a module and its public classes; with the class that a method is of."""
    owner = tree if isinstance(tree, ast.ClassDef) else None
    for node in tree.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node)
        elif not decorators(node) & EXEMPT_DECORATORS and not is_stub(node, owner):
            yield node, owner


def parameters(node: Function, owner: ast.ClassDef | None) -> list[str]:
    """Names of all but `self` and `cls`, in order."""
    given = node.args
    places = [*given.posonlyargs, *given.args]
    if owner and "staticmethod" not in decorators(node):
        places = places[1:]
    stars = [each for each in (given.vararg, given.kwarg) if each]
    return [each.arg for each in (*places, *given.kwonlyargs, *stars)]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What a function's body has, without functions and classes inside of it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield child
            yield from own_nodes(child)


def raised(node: Function) -> list[str]:
    """Names of the errors that its own body makes; one that is raised again has none."""
    found = (each.exc for each in own_nodes(node) if isinstance(each, ast.Raise) and each.exc)
    names = (ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in found)
    return [name for name in names if name not in OWN_FAULTS]


def is_listed(name: str, docstring: str) -> bool:
    """Whether a parameter has a line of its own."""
    return bool(re.search(rf"^ +\**{name}: ", docstring, re.MULTILINE))


def public_constructors(
    tree: ast.Module | ast.ClassDef,
) -> Iterator[tuple[Function, ast.ClassDef]]:
    """Of the public classes that write their own; with the class."""
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef) and not owner.name.startswith("_"):
            for node in owner.body:
                if isinstance(node, Function) and node.name == "__init__":
                    yield node, owner
            yield from public_constructors(owner)


def unlisted_of_constructors(tree: ast.Module) -> list[str]:
    """Constructors with parameters that neither they nor their classes list."""
    faults = []
    for node, owner in public_constructors(tree):
        docstring = "\n".join(ast.get_docstring(each) or "" for each in (owner, node))
        names = parameters(node, owner)
        missing = [name for name in names if not is_listed(name, docstring)]
        if len(names) > MOST_UNLISTED and missing and not REFERENCE.search(docstring):
            faults.append(f"line {node.lineno}: {owner.name}: no Args: of {', '.join(missing)}")
    return faults


def unlisted(tree: ast.Module) -> list[str]:
    """Functions with parameters that their docstrings do not list."""
    faults = []
    for node, owner in public_functions(tree):
        names = parameters(node, owner)
        _, is_there, listed = (ast.get_docstring(node) or "").partition("\nArgs:\n")
        if REFERENCE.search(ast.get_docstring(node) or ""):
            continue
        missing = [name for name in names if not is_listed(name, listed)]
        if len(names) > MOST_UNLISTED and (not is_there or missing):
            faults.append(f"line {node.lineno}: {node.name}: no Args: of {', '.join(missing)}")
    return faults


def unsaid(tree: ast.Module) -> list[str]:
    """Functions that raise without saying so."""
    return [
        f"line {node.lineno}: {node.name}: raises {', '.join(raised(node))}"
        for node, _ in public_functions(tree)
        if raised(node) and not SAYS_WHAT_IT_RAISES.search(ast.get_docstring(node) or "")
    ]


def shapeless(tree: ast.Module) -> list[str]:
    """Functions with tensors of whose shapes neither they, their classes nor the module tell."""
    faults = []
    for node, owner in (*public_functions(tree), *public_constructors(tree)):
        signature = f"{ast.unparse(node.args)} {ast.unparse(node.returns) if node.returns else ''}"
        docstrings = (ast.get_docstring(each) or "" for each in (tree, owner, node) if each)
        if TENSOR.search(signature) and not SHAPE.search("\n".join(docstrings)):
            faults.append(f"line {node.lineno}: {node.name}: no shape")
    return faults


def test_there_are_sources() -> None:
    assert all((ROOT / package).is_dir() for package in PACKAGES)


def test_arguments_shapes_and_errors_are_in_the_docstring() -> None:
    found = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        faults = [*unlisted(tree), *unlisted_of_constructors(tree), *unsaid(tree)]
        if not any(folder in path.parents for folder in OPERATORS):
            faults += shapeless(tree)
        if faults:
            found[name_of(path)] = faults
    assert found == {}


def test_what_is_looked_for_is_found() -> None:
    tree = ast.parse(EXAMPLE)
    assert unlisted(tree) == [
        "line 2: load: no Args: of a, b, c",
        "line 5: kept: no Args: of c",
    ]
    (fault,) = unlisted_of_constructors(tree)
    assert fault.endswith(": Batch: no Args: of c")
    assert unsaid(tree) == ["line 2: load: raises ValueError"]
    (fault,) = shapeless(tree)
    assert fault.endswith(": size: no shape")
    assert shapeless(ast.parse(f'"""Tensors are [rows, ...]."""\n{EXAMPLE}')) == []
