"""Digests of Smelt's own code: what a change of code may change is rebuilt automatically.

A digest covers a module and all of `compiler_worker` and `services.engines` that it imports,
directly or not, wherever the import stands: builders write what the run halves read, and an engine
without files of its own is its run half. It is taken of the syntax trees: comments, docstrings and
layout do not count, names and values do. Sources are read and never imported, so that a replica can
report with what code its node builds.
"""

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from services.contracts.builds.syntax_cache import Syntax, SyntaxCache
from services.contracts.errors import SmeltError
from services.contracts.hardware.kinds import EngineKind

_PACKAGE = "compiler_worker"
_RUN_HALVES = "services.engines"
_DIGITS = 16
# A proof is handed the recipe by which a calibrated engine's inputs are drawn, and the engine.
PROOF_MODULES = (
    f"{_PACKAGE}.proof.judge",
    f"{_PACKAGE}.inputs.calibrated_recipe",
    f"{_RUN_HALVES}.loader",
)
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def build_code(kind: EngineKind) -> str:
    """Of all code that makes engines of a kind from masters."""
    return code_digest(f"{_PACKAGE}.builders.{kind.value}_builder")


def proof_code() -> str:
    """Of all code that proves engines: the importer that references come from, the run halves."""
    return code_digest(*PROOF_MODULES)


@cache
def compiler_code() -> str:
    """Of all that builds and proves: what a node of another release differs in."""
    codes = "".join([*(build_code(kind) for kind in EngineKind), proof_code()])
    return hashlib.sha256(codes.encode()).hexdigest()[:_DIGITS]


@cache
def code_digest(*modules: str) -> str:
    """Of modules and their imports; raises SmeltError where sources are missing."""
    return digest_of(_root(), *modules)


def digest_of(root: Path, *modules: str) -> str:
    """As `code_digest`, of the sources in a folder.

    Args:
        root: holds the packages `compiler_worker` and `services`.
        modules: their dotted names.
    """
    sources: dict[str, _Source] = {}
    for module in modules:
        sources |= _closure(root, module)
    _cache(root).save()
    text = "".join(f"{name} {source.digest}\n" for name, source in sorted(sources.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _root() -> Path:
    spec = find_spec(_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise SmeltError(
            f"the sources of {_PACKAGE} are not installed here: engines are known by the code that "
            "makes them; install the whole of Smelt"
        )
    return Path(next(iter(places))).parent


@dataclass(frozen=True, kw_only=True)
class _Source:
    """One file.

    Attributes:
        digest: of its syntax tree.
        imports: what it may import, modules and names of modules alike.
    """

    digest: str
    imports: tuple[str, ...]


def _closure(root: Path, module: str) -> dict[str, _Source]:
    """Sources by module, of all that importing a module may run."""
    sources: dict[str, _Source] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _path(root, name)
        if name not in sources and path is not None:
            sources[name] = _read(root, path, name)
            # Its package runs before it does.
            waiting += [name.rpartition(".")[0], *sources[name].imports]
    if module not in sources:
        raise SmeltError(f"the source of {module} is missing in {root}: install Smelt again")
    return sources


def _path(root: Path, module: str) -> Path | None:
    """The file of a module that counts; None of others, and of what is no module."""
    if not f"{module}.".startswith((f"{_PACKAGE}.", f"{_RUN_HALVES}.")):
        return None
    path = root.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)


@cache
def _cache(root: Path) -> SyntaxCache:
    return SyntaxCache(root / _PACKAGE)


@cache
def _read(root: Path, path: Path, module: str) -> _Source:
    syntax = _cache(root).of(path, _parsed)
    imports = syntax.imports
    if path.name == "__init__.py" and syntax.uses_strings:
        # All of its own modules count, those of its folders too.
        for each in path.parent.rglob("*.py"):
            parts = each.relative_to(path.parent).with_suffix("").parts
            imports += (".".join((module, *parts)).removesuffix(".__init__"),)
    return _Source(digest=syntax.digest, imports=imports)


def _parsed(data: bytes) -> Syntax:
    words: list[str] = []
    imports: list[str] = []
    _append(ast.parse(data), words, imports)
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()
    return Syntax(digest, tuple(imports), "'import_module'" in words)


def _append(node: ast.AST, words: list[str], imports: list[str]) -> None:
    """Write a tree as text, the same on all versions of Python, and what it imports beside.

    Fields that are empty are left out: each version of Python adds some.
    """
    words.append(type(node).__name__)
    if isinstance(node, ast.Import):
        imports += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        imports += [f"{node.module}.{alias.name}" for alias in node.names]
        imports.append(str(node.module))
    for field in node._fields:
        value = getattr(node, field, None)
        if value is None or value == [] or field == "kind":
            continue
        words.append(field)
        children = value if isinstance(value, list) else [value]
        for child in children[_num_docstrings(node, field) :]:
            if isinstance(child, ast.AST):
                _append(child, words, imports)
            else:
                words.append(repr(child))
    words.append(";")


def _num_docstrings(node: ast.AST, field: str) -> int:
    if field != "body" or not isinstance(node, _DEFINITIONS):
        return 0
    return int(ast.get_docstring(node, clean=False) is not None)
