"""Threads for calls that hang, what returns late, and what the loop makes of it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.contracts.errors import NotReadyError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey
from tests.unit.services.controller.deploy.reconcile_world import (
    LIMIT_S,
    OLD,
    FakeFleet,
    Nodes,
    add,
)

# More than there are threads.
NUM_CALLS = 100


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Call until it is in time."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(NotReadyError):
                await call()
                return


async def test_calls_that_returned_late_cost_no_thread(let_go: threading.Event) -> None:
    threads = FleetThreads(ask_timeout_s=0.01)
    for _ in range(NUM_CALLS):
        late = threading.Event()
        with pytest.raises(NotReadyError, match="Ray did not answer within 0.01 s"):
            await threads.ask(late.wait)
        late.set()
    for _ in range(4):
        with pytest.raises(NotReadyError):
            await threads.ask(let_go.wait)
    await until_done(lambda: threads.ask(str))


async def test_it_is_exhausted_while_calls_hang_in_all_threads(let_go: threading.Event) -> None:
    threads = FleetThreads(ask_timeout_s=0.01)
    for _ in range(NUM_CALLS):
        with pytest.raises(NotReadyError):
            await threads.ask(let_go.wait)
    assert threads.is_exhausted
    let_go.set()
    await until_done(lambda: threads.ask(str))
    assert not threads.is_exhausted


async def test_an_application_that_hangs_keeps_no_later_one_waiting(
    let_go: threading.Event,
) -> None:
    threads = FleetThreads(submit_timeout_s=0.05)
    taken: list[int] = []
    first = asyncio.create_task(threads.submit(let_go.wait))
    second = asyncio.create_task(until_done(lambda: threads.submit(taken.append, 2)))
    with pytest.raises(NotReadyError, match="did not take an application within 0.05 s"):
        await first
    await second
    assert taken


class SilentFleet(FakeFleet):
    """Ray does not answer until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def deployed(self) -> list[DeploymentKey]:
        self.let_go.wait(LIMIT_S)
        return super().deployed()


async def test_a_question_that_hangs_ends_the_pass_and_not_the_controller(
    registry: Registry,
) -> None:
    fake, state = SilentFleet(), FleetState("u", 1)
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, ask_timeout_s=0.05)
    add(registry, "a")
    try:
        # More than there are threads.
        for _ in range(9):
            before_s = loop.last_sync_s
            with pytest.raises(NotReadyError, match="Ray did not answer within 0.05 s"):
                await loop.reconcile_now()
            assert loop.last_sync_s > before_s
    finally:
        fake.let_go.set()
    async with asyncio.timeout(LIMIT_S):
        while not any(model.state == "READY" for model in state.models()):
            with suppress(NotReadyError):
                await loop.reconcile_now()


async def test_syncs_without_a_thread_do_not_pass_for_looks_at_the_fleet(
    registry: Registry,
) -> None:
    fake = SilentFleet()
    loop = ReconcileLoop(
        registry, Nodes(OLD), FleetState("u", 1), fake, {}, resync_s=60, ask_timeout_s=0.01
    )
    before_s = 0.0
    try:
        async with asyncio.timeout(LIMIT_S / 2):
            while loop.last_sync_s > before_s:
                before_s = loop.last_sync_s
                with pytest.raises(NotReadyError):
                    await loop.reconcile_now()
    finally:
        fake.let_go.set()
    async with asyncio.timeout(LIMIT_S):
        while loop.last_sync_s == before_s:
            with suppress(NotReadyError):
                await loop.reconcile_now()
