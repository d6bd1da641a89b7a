"""Which tests a change reaches, and those of them that are slow: `python -m tests.changed [BASE]`.

Changed is what differs from where HEAD left BASE, committed or not, and every untracked file. BASE
is origin/main, or HEAD~1 where there is no such ref.

A module uses what it imports, wherever that stands, with the packages around it, and a test the
conftest.py of its folder and of those above. It also uses what its strings name, docstrings apart:
- a module of the project, or a path of one ("services.replica", "tests/s3.py"), for its __main__
  too; inside a longer string only with a dot or a slash. What is not constant in an f-string
  stands for anything.
- a file, by its name ("fleet.yaml", "ray_driver.py"), wherever in the project it lies.
- a folder of a file that is not Python, by its path with a slash ("k8s/base", ROOT / "k8s").
- a command of pyproject.toml, as the last part of a path (with_name("smelt"), "bin/smelt").
A file under tests that is not Python reaches the tests of its folder, and of those above and below.
pyproject.toml, requirements*.lock and Makefile reach every test, and so does tests/conftest.py.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import filter as matching
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("services", "compiler_worker", "deploy", "tests")
LOCKS = ("requirements.lock", "requirements-gpu.lock", "requirements-dev.lock")
REACH_ALL = ("pyproject.toml", *LOCKS, "Makefile")
PATH_CALLS = ("Path", "joinpath", "which", "with_name")
NO_TEST_COLLECTED = 5  # pytest's exit code
NAMING = (ast.Import, ast.ImportFrom, ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call)
DOTTED = re.compile(rf"(?<![\w.-])(?:{'|'.join(FOLDERS)})[./][\w*./-]+")
FILE_NAME = re.compile(r"[\w.-]+")


def dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").strip(".")


def is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).match("test_*.py")


def nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Those that can name something; by hand, as ast.walk takes twice as long for a million."""
    found: list[ast.AST] = [tree]
    for node in found:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, NAMING):
            yield node
        for value in vars(node).values():
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)


def imported(node: ast.AST, path: str) -> list[str]:
    """The dotted names that an import statement of this file gives; of more than modules too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = path.split("/")[: -node.level] if node.level else []
        module = ".".join([*above, *filter(None, [node.module])])
        return [f"{module}.{alias.name}" for alias in node.names]
    return []


def text_of(node: ast.AST, path: str) -> str:
    """A string constant, or an f-string with * for what is not constant; otherwise ""."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, path) or "*" for part in node.values)
    if isinstance(node, ast.FormattedValue) and ast.unparse(node.value) == "__name__":
        return dotted(path)
    return ""


def texts(node: ast.AST, path: str) -> list[str]:
    """What a node of this file says; a part of a path begins with a slash."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [node.right]
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        parts = node.args if name in PATH_CALLS else []
    elif own := text_of(node, path):
        return [own]
    return ["/" + text.strip("/") for part in parts if (text := text_of(part, path))]


class Project:
    """The files of a project, and those that have changed, which may be gone."""

    def __init__(self, root: Path, changed: Iterable[str]) -> None:
        here = {
            str(path.relative_to(root)) for top in FOLDERS for path in (root / top).rglob("*.py")
        }
        self._root, self.changed = root, set(changed)
        self.sources, files = sorted(here), here | self.changed
        self._modules = {dotted(path): path for path in files if path.endswith(".py")}
        self._named, self._in_folder = defaultdict(set), defaultdict(set)
        for path in files:
            self._named[Path(path).name].add(path)
            for folder in Path(path).parents[:-1] if not path.endswith(".py") else ():
                self._in_folder[f"/{folder}"].add(path)
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        self._commands = {
            f"/{name}": entry.partition(":")[0] for name, entry in project["scripts"].items()
        }

    def users(self) -> dict[str, set[str]]:
        """Each file, and those that use it directly."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.sources:
            for used in self._used_by(path):
                found[used].add(path)
        for path in self.changed:
            found[path].update(filter(is_test, self._beside(path)))
        return found

    def _used_by(self, path: str) -> set[str]:
        found = set()
        for node in nodes(ast.parse((self._root / path).read_text(), path)):
            for name in imported(node, path):
                found |= self._module(name)
            for text in texts(node, path):
                found |= self._said(text)
        for folder in Path(path).parents if is_test(path) else ():
            found |= {str(folder / "conftest.py")} & self._named["conftest.py"]
        return found - {path}

    def _module(self, name: str) -> set[str]:
        """What importing a name runs: each of its beginnings that is a module."""
        parts = name.split(".")
        beginnings = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        return {self._modules[begin] for begin in beginnings if begin in self._modules}

    def _said(self, text: str) -> set[str]:
        """What a string names."""
        found = set(self._in_folder.get("/" + text.strip("/"), ()) if "/" in text else ())
        for name in FILE_NAME.findall(text):
            found |= self._named.get(name, set())
        for name in map(dotted, [*DOTTED.findall(text), *({text} & set(FOLDERS))]):
            for module in matching(self._modules, name) if "*" in name else [name]:
                found |= self._module(f"{module}.__main__")
        command = "/" + text.rpartition("/")[2]
        if text == command or text.endswith(f"bin{command}"):
            found |= self._module(self._commands.get(command, ""))
        return found

    def _beside(self, path: str) -> list[str]:
        """What a file that is not Python reaches without being named."""
        if path in REACH_ALL:
            return self.sources
        if path.endswith(".py") or not path.startswith("tests/"):
            return []
        folder = Path(path).parent
        return [
            source
            for source in self.sources
            if (own := Path(source).parent).is_relative_to(folder) or folder.is_relative_to(own)
        ]


def reached(root: Path, changed: Iterable[str]) -> dict[str, list[str]]:
    """Each test file that is reached, with a shortest chain to it from a file that has changed."""
    project = Project(root, changed)
    users = project.users()
    chains = {path: [path] for path in sorted(project.changed)}
    for path in (queue := list(chains)):
        for user in sorted(users[path] - chains.keys()):
            chains[user] = [*chains[path], user]
            queue.append(user)
    return {path: chains[path] for path in project.sources if path in chains and is_test(path)}


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)} failed with {done.returncode}")
    return done.stdout


def changed_files(root: Path, base: str) -> set[str]:
    """Both names of what was renamed."""
    if not base:
        has_main = git(root, "for-each-ref", "refs/remotes/origin/main")
        base = "origin/main" if has_main else "HEAD~1"
    start = git(root, "merge-base", base, "HEAD").strip()
    differing = git(root, "diff", "--name-only", "--no-renames", "-z", start)
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return set(filter(None, (differing + untracked).split("\0")))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.changed", description=__doc__.partition("\n")[0])
    parser.add_argument("base", nargs="?", default="", help="instead of origin/main")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    changed = changed_files(ROOT, options.base)
    chains = reached(ROOT, changed)
    for chain in chains.values():
        print(" <- ".join(chain))
    print(f"{len(changed)} changed files reach {len(chains)} test files", flush=True)
    if options.list:
        return 0
    code = NO_TEST_COLLECTED
    if chains:
        command = [sys.executable, "-m", "pytest", "-m", "slow", *chains]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == NO_TEST_COLLECTED:
        print("no slow test is reached")
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
