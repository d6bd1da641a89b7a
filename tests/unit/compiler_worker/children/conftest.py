"""Of tests that run a child in this process."""

import io

import pytest
import torch._inductor.codecache  # noqa: F401 - it stays with the cache folder of its first import


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child sets where torch compiles; here that would hold for the tests after it too."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unset")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture
def stream() -> io.StringIO:
    """Where a child writes its events."""
    return io.StringIO()
