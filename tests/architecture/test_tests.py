"""What tests keep to: they look at and change public names alone (ruff's SLF001 sees the rest)."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PRIVATE = re.compile(r"""setattr\(\s*(?:[^,()"']+,\s*["']_(?!_)|["'][\w.]*\._)""")


def test_no_test_patches_a_private_name() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {match.group()}"
        for path in TESTS.rglob("*.py")
        if path != Path(__file__)
        for match in PRIVATE.finditer(path.read_text())
    ]
    assert found == []


def test_what_is_looked_for_is_found() -> None:
    for text in ('setattr(replica, "_task", 1)', 'setattr("services.replica.app._X", 1)'):
        assert PRIVATE.search(text)
    assert not PRIVATE.search('setattr(module, "__version__", "1")')


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    """Pytest passes over folders of some names, which is seen nowhere."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    names = {name for folder in folders for name in folder.relative_to(TESTS).parts}
    assert not [name for name in names for pattern in patterns if fnmatch(name, pattern)]
