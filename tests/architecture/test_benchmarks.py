"""Benchmarks run by hand, and rarely: what they import must be there all the same."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# In environments of their own.
PEERS = {"peer_mlserver", "peer_pytriton"}
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "tests" / "benchmarks").rglob("*.py"))
    if path.stem not in PEERS
]


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_finds_what_it_imports(name: str) -> None:
    assert importlib.import_module(name)
