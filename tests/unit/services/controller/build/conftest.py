"""A registry with one model and a worker without a compiler."""

from pathlib import Path

import pytest

from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.unit.services.controller import build_world as world


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """An empty store."""
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


@pytest.fixture
def worker(registry: Registry) -> world.InstantWorker:
    """A worker that builds at once, and a model to build."""
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    return world.InstantWorker(registry)
