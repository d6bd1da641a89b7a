"""The fallback on a GPU is compiled there, and says so."""

from collections.abc import Callable

from services.contracts.hardware.facts import DeviceFacts
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackMode
from tests.conformance.workshop import Built
from tests.gpu.cases import COMPILED_FALLBACK, EngineCase


def test_inductor_compiles_it_for_the_device(
    built_of: Callable[[EngineCase], Built], device: DeviceFacts
) -> None:
    engine = built_of(COMPILED_FALLBACK).load(device)
    assert isinstance(engine, FallbackEngine)
    assert (engine.mode, engine.reason) == (FallbackMode.COMPILED, "")
    engine.close()
