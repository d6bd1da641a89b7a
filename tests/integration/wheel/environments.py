"""Environments that hold the built wheel and what one extra of it requires, and nothing else."""

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "services", "compiler_worker")
# Of each path the distributions that have files at or below it.
Owners = dict[PurePosixPath, set[str]]


def build_wheel(folder: Path) -> Path:
    """Build the distribution from a copy of the sources, which a build writes into."""
    for name in SOURCES:
        source, target = ROOT / name, folder / "sources" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(folder / "sources")]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("smelt-*.whl")
    return wheel


def requirements_of(wheel: Path, extra: str) -> set[str]:
    """Names of all distributions that `pip install smelt[extra]` brings, by what each declares."""
    (found,) = importlib.metadata.distributions(path=[str(wheel)])
    todo = _required(found.requires or [], {extra})
    done: set[str] = set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (key := f"{name}{sorted(extras)}") in done:
            continue
        done.add(key)
        requires = found.requires if name == "smelt" else _requires(name)
        todo += _required(requires or [], set(extras))
    return {key.partition("[")[0] for key in done} - {"smelt"}


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.fail(f"{name} is not installed: the locks are older than pyproject.toml; make lock")


def _required(lines: Iterable[str], extras: set[str]) -> list[Requirement]:
    requirements = [Requirement(line) for line in lines]
    return [
        found
        for found in requirements
        if found.marker is None or any(found.marker.evaluate({"extra": e}) for e in extras | {""})
    ]


def make_environment(folder: Path, wheel: Path, extra: str) -> Path:
    """An environment without pip, whose packages are links to those of this interpreter.

    Returns:
        its interpreter.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    here = Path(str(importlib.metadata.distribution("pip").locate_file("")))
    _link(PurePosixPath(), here, packages, _owners(), requirements_of(wheel, extra))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "bin" / "python"


@cache
def _owners() -> Owners:
    owners: Owners = defaultdict(set)
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.name)
        for file in distribution.files or []:
            for path in (file, *file.parents):
                owners[path].add(name)
    return owners


def _link(
    folder: PurePosixPath, source: Path, target: Path, owners: Owners, wanted: set[str]
) -> None:
    """Link what belongs to wanted distributions alone; folders that they share are made anew."""
    for path in (source / folder).iterdir():
        name = folder / path.name
        if not (wanted & owners.get(name, set())):
            continue
        if owners[name] <= wanted or not path.is_dir():
            (target / name).symlink_to(path)
        else:
            (target / name).mkdir()
            _link(name, source, target, owners, wanted)
