"""An event recorder over a real store."""

from pathlib import Path

import pytest

from services.contracts.registry.event_log import EventRegistry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.controller.events.event_recorder import EventRecorder


@pytest.fixture
def store(tmp_path: Path) -> ObstoreArtifactStore:
    """An empty store."""
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def registry(store: ObstoreArtifactStore) -> EventRegistry:
    """Its events."""
    return EventRegistry(store)


@pytest.fixture
def recorder(registry: EventRegistry) -> EventRecorder:
    """A recorder that has seen nothing."""
    return EventRecorder(registry)
