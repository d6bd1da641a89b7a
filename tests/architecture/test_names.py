"""A name stands for one thing.

A public class or function is defined in one module. A module's file name stands once in its
station, and no station has one of the contracts or the telemetry that it imports: what is called
by a file name in a log or a README is found by it. Two packages are apart from the second rule:
`grpc_server` knows no contracts, and modules of `cli` are named as its commands, which are named
as what they work on.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "services" / "pb"
SOURCES = sorted(
    path.relative_to(ROOT)
    for package in ("services", "compiler_worker")
    for path in (ROOT / package).rglob("*.py")
    if GENERATED not in path.parents
)
# What Python calls so, and what each station has one of.
CONVENTIONAL_MODULES = {"__init__", "__main__", "metrics", "settings"}
SHARED = {"contracts", "telemetry"}
APART = {"grpc_server", "cli"}
# Where a process starts.
CONVENTIONAL_FUNCTIONS = {"main"}
# A function that one of these registers is named as the ONNX operator or the command that it is.
REGISTERING = {"converter", "command", "triton_op"}


def is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    calls = (each.func for each in node.decorator_list if isinstance(each, ast.Call))
    return any(ast.unparse(function).rpartition(".")[2] in REGISTERING for function in calls)


def public_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names and line numbers of a module's public classes and functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in CONVENTIONAL_FUNCTIONS or is_registered(node):
                continue
        elif not isinstance(node, ast.ClassDef):
            continue
        if not node.name.startswith("_"):
            yield node.name, node.lineno


def used_twice(places: Iterable[tuple[str, str]]) -> list[str]:
    """Of names and where they stand, those that stand in more than one file."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, place in places:
        found[name].append(place)
    return [
        f"{name}: {', '.join(where)}"
        for name, where in sorted(found.items())
        if len({place.partition(":")[0] for place in where}) > 1
    ]


def station_of(path: Path) -> str:
    """The package that a module is of: `gateway`, `compiler_worker`."""
    return path.parts[1] if path.parts[0] == "services" else path.parts[0]


def module_clashes(paths: Iterable[Path]) -> list[str]:
    """File names that stand twice in one station, or in a station and in what it imports."""
    # Kernels are the other half of converters, in a module of the same name.
    named = [
        path
        for path in paths
        if path.stem not in CONVENTIONAL_MODULES and "kernels" not in path.parts
    ]
    stations = sorted({station_of(path) for path in named} - SHARED)
    clashes: list[str] = []
    for station in (*stations, *SHARED):
        seen = {station} | (set() if station in APART else SHARED)
        clashes += used_twice((path.stem, str(path)) for path in named if station_of(path) in seen)
    return sorted(set(clashes))


def test_a_public_name_is_defined_once() -> None:
    found = used_twice(
        (name, f"{path}:{line}")
        for path in SOURCES
        for name, line in public_names(ast.parse((ROOT / path).read_text()))
    )
    assert not found, "name each as what it is, or make it one:\n" + "\n".join(found)


def test_a_module_name_stands_once_in_its_station() -> None:
    found = module_clashes(SOURCES)
    assert not found, "name each as what it holds:\n" + "\n".join(found)


def test_what_is_looked_for_is_found() -> None:
    text = "@app.command()\ndef prune(): ...\ndef _own(): ...\ndef main(): ...\nclass Plan: ...\n"
    assert list(public_names(ast.parse(text))) == [("Plan", 5)]
    assert used_twice([("Plan", "a.py:1"), ("Plan", "b.py:2"), ("Pool", "a.py:3")]) == [
        "Plan: a.py:1, b.py:2"
    ]
    gateway, contracts, cli, replica = (
        Path(f"services/{package}/x/gate.py")
        for package in ("gateway", "contracts", "cli", "replica")
    )
    assert len(module_clashes([gateway, contracts])) == 1
    assert len(module_clashes([gateway, Path("services/gateway/y/gate.py")])) == 1
    assert not module_clashes([gateway, replica, cli])
    assert not module_clashes([contracts, cli])
