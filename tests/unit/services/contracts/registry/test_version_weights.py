"""How a model's versions share requests: the last word counts, and nonsense is refused."""

import pytest

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry

MASTER = MasterRecord(digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=0)


@pytest.fixture
def registry(registry: Registry) -> Registry:
    for source in ("1", "2", "3"):
        registry.add_model_version(
            name="mini", master=MASTER, recipe=Recipe(), source=source, source_fingerprint=source
        )
    return registry


def test_the_last_word_counts(registry: Registry) -> None:
    assert registry.version_weights("mini") == {}
    registry.set_version_weights("mini", {1: 95, 2: 5, 3: 0})
    assert registry.version_weights("mini") == {1: 95, 2: 5}
    registry.set_version_weights("mini", {3: 0.5})
    assert registry.version_weights("mini") == {3: 0.5}
    registry.set_version_weights("mini", {})
    assert registry.version_weights("mini") == {}
    assert registry.model_names() == ["mini"]


@pytest.mark.parametrize(
    "weights", [{1: -1.0}, {1: 0.0, 2: 0.0}, {1: float("inf")}, {1: float("nan")}]
)
def test_weights_that_mean_nothing_are_refused(
    registry: Registry, weights: dict[int, float]
) -> None:
    with pytest.raises(InvalidRequestError, match=r"model 'mini': weights 1=.*; expected"):
        registry.set_version_weights("mini", weights)
    assert registry.version_weights("mini") == {}


def test_versions_and_models_have_to_exist(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match="no version 4"):
        registry.set_version_weights("mini", {1: 1, 4: 1})
    for weights in ({1: 1.0}, {}):
        with pytest.raises(NotFoundError, match="model 'other' not found"):
            registry.set_version_weights("other", weights)
