"""Removed models: listed no more, never overwritten, and numbered on when added again."""

from pathlib import Path

import pytest

from services.contracts.errors import NotFoundError, StoreError
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore

MASTER = MasterRecord(digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=0)


@pytest.fixture
def registry(registry: Registry) -> Registry:
    for source in ("1", "2", "3"):
        add(registry, source)
    add(registry, "1", name="other")
    return registry


def add(registry: Registry, source: str, name: str = "mini") -> ModelVersion:
    return registry.add_model_version(
        name=name, master=MASTER, recipe=Recipe(), source=source, source_fingerprint=source
    )


def numbers(registry: Registry) -> list[int]:
    return [version.version for version in registry.versions("mini")]


def test_a_removed_model_is_known_no_more(registry: Registry) -> None:
    assert registry.remove_model("mini") == {1: "", 2: "", 3: ""}
    assert registry.model_names() == ["other"]
    assert numbers(registry) == []
    for ask in (registry.model_version, registry.remove_model):
        with pytest.raises(NotFoundError, match="'mini' not found; there are: other"):
            ask("mini")


def test_without_its_newest_version_the_one_before_is_newest(registry: Registry) -> None:
    registry.remove_model("mini", 3)
    assert (numbers(registry), registry.model_version("mini").version) == ([1, 2], 2)
    with pytest.raises(NotFoundError, match="'mini' has no version 3; there are: 1, 2"):
        registry.remove_model("mini", 3)


def test_a_number_is_never_given_again(registry: Registry) -> None:
    registry.remove_model("mini", 3)
    assert add(registry, "2").version == 4  # what is newest by number cannot be repeated
    registry.remove_model("mini")
    assert add(registry, "2").version == 5
    assert (registry.model_names(), numbers(registry)) == (["mini", "other"], [5])


def test_a_version_in_the_middle_goes_alone(registry: Registry) -> None:
    registry.remove_model("mini", 2)
    assert numbers(registry) == [1, 3]
    assert add(registry, "3").version == 3  # the newest is still repeated


def test_removals_say_what_was_removed_and_by_whom(registry: Registry) -> None:
    assert registry.removed_versions() == {}
    registry.remove_model("mini", 2, who="ann@host")
    registry.remove_model("mini", 1)
    assert registry.removed_versions() == {"mini": [1, 2]}
    assert [registry.removal("mini", each).who for each in (1, 2)] == ["", "ann@host"]
    with pytest.raises(NotFoundError):
        registry.removal("mini", 3)


def test_nothing_in_the_store_is_deleted_or_changed(
    registry: Registry, store: ObstoreArtifactStore
) -> None:
    before = {key: store.read(key) for key in store.list("models/")}
    registry.remove_model("mini")
    after = {key: store.read(key) for key in store.list("models/")}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 3


def test_a_removal_of_tomorrow_s_form_counts_too(
    registry: Registry, store: ObstoreArtifactStore
) -> None:
    """Its key says which version it is of, so one that cannot be read stops nobody."""
    store.create("models/mini/removed/000003.json", b'{"of": "tomorrow"}')
    assert numbers(registry) == [1, 2]
    assert registry.model_names() == ["mini", "other"]


def test_a_version_that_cannot_be_read_can_be_removed(
    registry: Registry, store: ObstoreArtifactStore
) -> None:
    store.create("models/mini/versions/000004.json", b"{broken")
    with pytest.raises(StoreError):
        registry.model_version("mini")
    removed = registry.remove_model("mini", 4)
    assert (list(removed), numbers(registry)) == ([4], [1, 2, 3])
    assert "models/mini/versions/000004.json" in removed[4]
    assert registry.model_version("mini").version == 3


def test_a_model_of_which_nothing_can_be_read_can_be_removed(
    registry: Registry, store: ObstoreArtifactStore
) -> None:
    store.create("models/bad/versions/000001.json", b"{broken")
    assert "models/bad/versions/000001.json" in registry.remove_model("bad")[1]
    assert registry.model_names() == ["mini", "other"]


def test_another_process_sees_it(registry: Registry, store: ObstoreArtifactStore) -> None:
    reader = Registry(store, Path("unused"))
    assert reader.model_version("mini").version == 3
    registry.remove_model("mini", 3)
    assert reader.model_version("mini").version == 2
