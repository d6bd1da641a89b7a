"""A real engine whose calls a test holds."""

import asyncio
from collections.abc import Mapping

import pytest

from services.contracts.kserve.tensors import Array
from services.replica.server import ReplicaServer

from .conftest import engine_of


class HeldEngine:
    """Holds the calls of a real engine until the test lets them go; see `own_thread`."""

    def __init__(self, server: ReplicaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        assert server.replica.loaded is not None
        assert not server.replica.loaded.is_brief, "a held one must not hold the event loop"
        engine, self._loop = engine_of(server), asyncio.get_running_loop()
        self._plain_run = engine.run
        self.is_held = asyncio.Event()
        self.may_go = asyncio.Event()
        monkeypatch.setattr(engine, "run", self.run)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Tell the test, wait for it, compute."""
        self._loop.call_soon_threadsafe(self.is_held.set)
        asyncio.run_coroutine_threadsafe(self.may_go.wait(), self._loop).result(60)
        return self._plain_run(inputs)
