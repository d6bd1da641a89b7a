"""Who is unloaded, where documents of a newer release lie among those that can be read."""

from pathlib import Path

import pytest

from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store


def test_a_change_that_cannot_be_read_leaves_a_model_and_all_others_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("memory:")
    registry = Registry(store, tmp_path)
    for name in ("a", "b"):
        assert registry.set_served(name, is_served=False)
    for key in ("serving/b/000002.json", "serving/c/000001.json"):
        store.create(key, b'{"of": "a newer release"}')
    assert registry.unloaded_models() == {"a", "b"}
    assert "model 'c' stays as the change before says" in caplog.text
    assert registry.set_served("b", is_served=True)
    assert registry.unloaded_models() == {"a"}
