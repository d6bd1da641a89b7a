"""Fixtures of the conformance suite: every case built once, one loaded engine per case."""

from collections.abc import Callable, Iterable, Iterator

import onnx
import pytest

from services.engines.device.device_probe import probe_device
from tests.conformance.cases import ENGINE_CASES, EngineCase
from tests.conformance.tiny_model import tiny_model
from tests.conformance.workshop import (
    AnyEngine,
    Built,
    Published,
    build,
    unbuildable_reason,
    unrunnable_reason,
)


@pytest.fixture(scope="session")
def built_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[EngineCase], Built]:
    """Builds a case at its first use."""
    known: dict[str, Built] = {}

    def get(case: EngineCase) -> Built:
        if reason := unbuildable_reason(case):
            pytest.skip(reason)
        if case.name not in known:
            known[case.name] = build(case, tmp_path_factory.mktemp(case.name))
        return known[case.name]

    return get


def parameters(cases: Iterable[EngineCase]) -> list["pytest.ParameterSet"]:
    """One a case, by its name."""
    return [
        pytest.param(case, id=case.name, marks=pytest.mark.slow if case.is_variant else ())
        for case in cases
    ]


@pytest.fixture(scope="module", params=parameters(ENGINE_CASES))
def built(request: pytest.FixtureRequest, built_of: Callable[[EngineCase], Built]) -> Built:
    """Every case in turn, built; it need not run on this host."""
    return built_of(request.param)


@pytest.fixture(
    scope="module", params=parameters(case for case in ENGINE_CASES if case.kind is not None)
)
def published(request: pytest.FixtureRequest, built_of: Callable[[EngineCase], Built]) -> Published:
    """As `built`, without the fallback: that one is compiled where it runs."""
    case = built_of(request.param)
    assert isinstance(case, Published)
    return case


@pytest.fixture(scope="module")
def engine(built: Built) -> Iterator[AnyEngine]:
    """One loaded engine of the case, shared by the tests that leave it loaded."""
    skip_unless_runnable(built)
    loaded = built.load(probe_device())
    yield loaded
    loaded.close()


@pytest.fixture
def own_engine(built: Built) -> Iterator[AnyEngine]:
    """An engine for one test alone."""
    skip_unless_runnable(built)
    loaded = built.load(probe_device())
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def model() -> onnx.ModelProto:
    """The graph that every case is built from."""
    return tiny_model()


def skip_unless_runnable(built: Built) -> None:
    """Skip where the host lacks the device; what can be tested without it is tested."""
    if reason := unrunnable_reason(built.case):
        pytest.skip(reason)
