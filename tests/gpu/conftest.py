"""What needs a CUDA device: without one every test here is skipped and says so."""

from collections.abc import Callable

import pytest

from services.contracts.hardware.facts import DeviceFacts
from services.engines.device.cuda_driver import first_cuda_device
from services.engines.device.device_probe import probe_device
from tests.conformance.conftest import built_of, engine, model, own_engine
from tests.conformance.workshop import Built, Published
from tests.gpu.cases import CUDA_CASES, GRAPHED, PUBLISHED_CASES, EngineCase

# Fixtures of the conformance suite; the cases that they are made for are this folder's.
__all__ = ["built_of", "engine", "model", "own_engine"]


@pytest.fixture(scope="session", autouse=True)
def device() -> DeviceFacts:
    """Facts of the CUDA device of this machine."""
    if reason := no_cuda_reason():
        pytest.skip(reason)
    return probe_device()


def no_cuda_reason() -> str:
    """Why nothing here can run on this machine, or ""."""
    if first_cuda_device() is None:
        return "needs a CUDA device: the driver shows none"
    import torch

    if not torch.cuda.is_available():
        return f"needs torch with CUDA: {torch.__version__} sees no device"
    return ""


@pytest.fixture(scope="module", params=CUDA_CASES, ids=lambda case: case.name)
def built(request: pytest.FixtureRequest, built_of: Callable[[EngineCase], Built]) -> Built:
    """Every case in turn, built for and on this device."""
    return built_of(request.param)


@pytest.fixture(scope="module", params=PUBLISHED_CASES, ids=lambda case: case.name)
def published(request: pytest.FixtureRequest, built_of: Callable[[EngineCase], Built]) -> Published:
    """As `built`, without the fallback: that one is compiled where it runs."""
    return _published(built_of(request.param))


@pytest.fixture(scope="session")
def graphed(built_of: Callable[[EngineCase], Built]) -> Published:
    """One case that runs under CUDA graphs, for what is true of graphs whatever they compute."""
    return _published(built_of(GRAPHED))


def _published(built: Built) -> Published:
    assert isinstance(built, Published)
    return built
