"""Every kind has a run half."""

import pytest

from services.contracts.hardware.kinds import EngineKind
from services.engines.loader import engine_class


@pytest.mark.parametrize("kind", EngineKind)
def test_each_kind_has_a_class_of_its_name(kind: EngineKind) -> None:
    engine = engine_class(kind)
    assert engine.__name__ == f"{kind.value.capitalize()}Engine"
    assert engine.__module__.rpartition(".")[2] == f"{kind.value}_engine"
    assert isinstance(engine.unavailable_reason(), str)
