"""How much memory a build may take when nobody says: most of what there is."""

from pathlib import Path

import psutil
import pytest

from compiler_worker import memory
from compiler_worker.settings import settings_from_environment

GIB = 2**30


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a container's limit stands; none at first."""
    path = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", (path,))
    monkeypatch.delenv("SMELT_MEMORY_LIMIT_GIB", raising=False)
    return path


def test_without_a_container_it_is_most_of_the_host(container: Path) -> None:
    left_gib = psutil.virtual_memory().available / GIB
    assert 0.7 * left_gib < settings_from_environment().memory_limit_gib < left_gib


@pytest.mark.parametrize("said", ["max", "", str(2**63 - 4096)])
def test_a_container_without_a_limit_changes_nothing(container: Path, said: str) -> None:
    before = memory.usable_memory_gib()
    container.write_text(f"{said}\n")
    assert memory.usable_memory_gib() == before


def test_a_container_s_limit_counts(container: Path) -> None:
    container.write_text(f"{GIB}\n")
    assert settings_from_environment().memory_limit_gib == 0.8


def test_what_a_person_says_wins(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container.write_text(f"{GIB}\n")
    monkeypatch.setenv("SMELT_MEMORY_LIMIT_GIB", "3.5")
    assert settings_from_environment().memory_limit_gib == 3.5
