"""A package's README names every file of its folder, and every folder below it.

Of a folder below, it names either all files or only some that matter: of one whose files it
mostly names, a reader takes the list for all. Each file that it names exists.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = sorted(
    readme
    for package in ("services", "compiler_worker")
    for readme in (ROOT / package).rglob("README.md")
)


def lacking(readme: Path) -> Iterator[str]:
    """Files and folders that a README should name and does not."""
    words = set(re.findall(r"\w+(?:\.py)?", readme.read_text()))
    for folder in folders(readme.parent):
        names = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
        missing = names - words
        if folder == readme.parent or len(missing) < len(names) / 2:
            yield from sorted(missing)
        if folder.name not in words and folder != readme.parent:
            yield folder.name


def gone(readme: Path) -> Iterator[str]:
    """Files that it names which neither lie below the package nor, by path, in a folder above."""
    above = [folder for folder in readme.parents if folder.is_relative_to(ROOT)]
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", readme.read_text()):
        is_above = any((folder / name).exists() for folder in above)
        if not is_above and not any(readme.parent.rglob(name)):
            yield name


def folders(top: Path) -> Iterator[Path]:
    """A package and those below it that have no README of their own."""
    yield top
    for folder in sorted(path.parent for path in top.glob("*/__init__.py")):
        if not (folder / "README.md").exists():
            yield from folders(folder)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_every_file_and_folder_is_named(readme: Path) -> None:
    assert list(lacking(readme)) == []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_every_named_file_exists(readme: Path) -> None:
    assert list(gone(readme)) == []


def test_what_is_looked_for_is_found(tmp_path: Path) -> None:
    for name in ("a", "b/__init__", "b/c", "b/d", "b/e", "f/__init__", "f/g"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    readme = tmp_path / "README.md"
    readme.write_text("`b/`: `b/c.py`, `d.py`, `b/g.py`")
    assert list(lacking(readme)) == ["a.py", "e.py", "f"]
    assert list(gone(readme)) == ["b/g.py"]
