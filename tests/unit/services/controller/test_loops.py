"""Both loops together: one that hangs is seen, and one that ends ends both."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.contracts.builds.held_lease import take_lease
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_election import CONTROLLER
from services.controller.build.build_loop import BuildLoop
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import TaskStatus
from services.controller.loops import Loops
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.deploy.reconcile_world import LIMIT_S, OLD, FakeFleet, Nodes


@dataclass
class HangingWorker(world.InstantWorker):
    """A launcher whose platform answers only when it is let go, or raises what it likes."""

    fault: BaseException | None = None
    is_asked: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def statuses(self) -> dict[str, TaskStatus]:
        self.is_asked.set()
        if self.fault:
            raise self.fault
        self.let_go.wait()
        return super().statuses()


class Controller:
    """Both loops over one store, and their time."""

    def __init__(self, registry: Registry) -> None:
        self.now_s = 0.0
        self.worker = HangingWorker(registry)
        self.fleet = FakeFleet()
        nodes = Nodes(OLD)
        state = FleetState("u", 1)
        deploying = ReconcileLoop(
            registry, nodes, state, self.fleet, {}, resync_s=60, clock=self.clock
        )
        building = BuildLoop(registry, nodes, self.worker, state, clock=self.clock)
        self.loops = Loops(deploying, building)

    def clock(self) -> float:
        return self.now_s

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop_requested = asyncio.Event()
        task = asyncio.create_task(self.loops.run_until(stop_requested))
        try:
            yield
        finally:
            stop_requested.set()
            assert await task

    async def until_synced_at(self, seconds: float) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.loops.last_sync_s < seconds:
                await self.loops.reconcile_now()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return world.registry_with_model(tmp_path)


@pytest.fixture
async def controller(registry: Registry) -> AsyncIterator[Controller]:
    controller = Controller(registry)
    yield controller
    controller.worker.let_go.set()


async def test_a_build_sync_that_hangs_is_seen_although_the_other_loop_works(
    controller: Controller,
) -> None:
    async with controller.running():
        assert await asyncio.to_thread(controller.worker.is_asked.wait, LIMIT_S)
        controller.now_s = 400.0
        await controller.loops.reconcile_now()
        assert controller.loops.last_sync_s == 0.0
        controller.worker.let_go.set()
        await controller.until_synced_at(400.0)


async def test_a_controller_that_stands_by_is_healthy_while_it_deploys(
    controller: Controller, registry: Registry
) -> None:
    other = take_lease(registry, CONTROLLER, registry.lease(CONTROLLER), lease_s=3600)
    assert other
    async with controller.running():
        controller.now_s = 400.0
        await controller.loops.reconcile_now()
        assert controller.loops.last_sync_s == 400.0
    assert not controller.worker.is_asked.is_set()


class PanicError(BaseException):
    """As those of Rust libraries: no Exception."""


async def test_a_build_loop_that_ends_ends_the_process(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    controller.worker.fault = PanicError("index out of range")
    async with asyncio.timeout(LIMIT_S):
        assert not await controller.loops.run_until(asyncio.Event())
    assert "the build loop has ended" in caplog.text
    assert "index out of range" in caplog.text
    assert "the deploy loop" not in caplog.text


async def test_a_deploy_loop_that_ends_ends_the_process(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    controller.fleet.broken.append(PanicError("index out of range"))
    async with asyncio.timeout(LIMIT_S):
        assert not await controller.loops.run_until(asyncio.Event())
    assert "the deploy loop has ended" in caplog.text
    assert "the build loop" not in caplog.text
