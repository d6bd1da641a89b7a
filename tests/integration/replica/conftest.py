"""A tiny real model in a real local store, served by a replica in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.gateway.upstream.replica_connection import ReplicaConnection, connect
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.loaded_engine import LoadedEngine, RunningEngine
from services.replica.engine.loading import EngineLoader, FetchedEngine
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.process_server import forked_children

from .controller import TestController
from .published import Shelf

__all__ = ["forked_children"]  # a fixture


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """A store with one model version and no engine."""
    return Shelf(tmp_path)


@pytest.fixture
async def controller() -> AsyncIterator[TestController]:
    """A controller that writes down what replicas report."""
    async with TestController() as controller:
        yield controller


@pytest.fixture
def settings(tmp_path: Path, controller: TestController) -> ReplicaSettings:
    """Settings of a replica of that model."""
    return ReplicaSettings(
        store_url=str(tmp_path / "store"),
        cache_dir=tmp_path / "cache",
        model="toy",
        controller_address=controller.address,
        socket_dir=tmp_path / "s",
        num_threads=1,
    )


Serving = Callable[..., Awaitable[ReplicaServer]]


@pytest.fixture
async def serving(settings: ReplicaSettings) -> AsyncIterator[Serving]:
    """Starts replicas that are stopped when the test ends."""
    servers: list[ReplicaServer] = []

    async def start(**options: float) -> ReplicaServer:
        server = ReplicaServer(settings, NullRecorder(), **options)
        servers.append(server)
        await server.start()
        return server

    yield start
    for server in servers:
        await server.stop(grace_s=0)


LoadAs = Callable[..., None]


@pytest.fixture
def load_as(monkeypatch: pytest.MonkeyPatch) -> LoadAs:
    """Has engines that are loaded from then on differ so from what was measured of them."""
    plain_load = EngineLoader.load

    def load_as(**changes: object) -> None:
        def load(loader: EngineLoader, fetched: FetchedEngine) -> LoadedEngine:
            return replace(plain_load(loader, fetched), **changes)  # type: ignore[arg-type]

        monkeypatch.setattr(EngineLoader, "load", load)

    return load_as


@pytest.fixture
def own_thread(load_as: LoadAs) -> None:
    """Engines run on threads of their own, however quick they are: they may be held."""
    load_as(is_brief=False)


def engine_of(server: ReplicaServer) -> RunningEngine:
    """The engine in use."""
    assert server.replica.loaded is not None
    return server.replica.loaded.engine


@asynccontextmanager
async def connected(address: str, token: bytes) -> AsyncIterator[ReplicaConnection]:
    """A gateway's connection to a data port."""
    connection = await connect(address, token=token)
    try:
        yield connection
    finally:
        connection.close()


async def until(controller: TestController, state: fleet.ReplicaState) -> fleet.ReplicaReport:
    """The first report of this state."""
    async with asyncio.timeout(60):
        return await controller.report_where(lambda report: report.state == state)
