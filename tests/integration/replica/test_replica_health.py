"""When a replica reports itself unhealthy, and what does not make it so."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from services.contracts.errors import (
    EngineError,
)
from services.contracts.kserve.tensors import Array
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry import catalog
from services.telemetry.metric import Metric
from services.telemetry.recorder import NullRecorder

from .conftest import Serving, engine_of, until
from .controller import TestController
from .published import NUM_ROWS, Shelf, ids_of, request_of


async def test_a_dead_data_port_is_unhealthy_and_reported(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    await server.check_health()
    await asyncio.to_thread(Path(server.addresses[0].removeprefix("unix:")).unlink)
    with pytest.raises(EngineError, match="data port .* does not answer"):
        await server.check_health()
    await until(controller, fleet.REPLICA_STATE_FAILED)


async def checked_without_end(server: ReplicaServer) -> NoReturn:
    """Ask until it raises: an engine that passed a proof rests nine times as long as that took."""
    async with asyncio.timeout(60):
        while True:
            await server.check_health()


async def test_requests_that_every_engine_fails_on_do_not_end_a_replica(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    outside = request_of(np.full((1, 2), NUM_ROWS, np.int64))
    for _ in range(MAX_FAILURES_IN_A_ROW):
        with pytest.raises(EngineError):
            await server.replica.infer(outside)
    await server.check_health()

    def broken(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise RuntimeError("context is broken")

    monkeypatch.setattr(engine_of(server), "run", broken)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        with pytest.raises(EngineError):
            await server.replica.infer(request_of(ids_of(1, 1)))
    with pytest.raises(EngineError, match="known to be good: context is broken"):
        await checked_without_end(server)
    await until(controller, fleet.REPLICA_STATE_FAILED)


class FailingOnce(NullRecorder):
    """Loses a gauge once, and knows when it is set again."""

    def __init__(self) -> None:
        self.num_failures = 0
        self.is_set_again = asyncio.Event()

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Fail the first time."""
        if metric is not catalog.QUEUE_USED:
            return
        if self.num_failures:
            self.is_set_again.set()
            return
        self.num_failures += 1
        raise OSError("no room")


async def test_gauges_are_set_on_after_one_that_could_not_be(
    shelf: Shelf, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    recorder = FailingOnce()
    server = ReplicaServer(settings, recorder)
    await server.start()
    async with asyncio.timeout(60):
        await recorder.is_set_again.wait()
    await server.stop(grace_s=0)
