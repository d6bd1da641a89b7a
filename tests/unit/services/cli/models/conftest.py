"""A store, and the registry on it."""

from pathlib import Path

import pytest

from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObstoreArtifactStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def registry(store: ObstoreArtifactStore, tmp_path: Path) -> Registry:
    return Registry(store, tmp_path / "cache")
