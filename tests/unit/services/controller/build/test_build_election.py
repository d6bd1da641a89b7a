"""Of several controllers of one store one builds; the next one takes over when it is gone."""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.contracts.builds.build_lease import BuildLease
from services.contracts.events import EventKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_election import CONTROLLER, BuildElection
from services.controller.build.build_loop import BuildLoop
from services.controller.events.event_recorder import EventRecorder
from services.controller.interfaces import BuildTask, NodePool
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.catalog import BUILD_LOOP_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.events.observed import replica

# Long enough for any machine; nothing here waits for it to pass.
LIMIT_S = 60.0


@dataclass
class Worker(world.InstantWorker):
    """Tells a test when something was launched."""

    has_launched: threading.Event = field(default_factory=threading.Event)

    def launch(self, task: BuildTask) -> None:
        super().launch(task)
        self.has_launched.set()


@dataclass
class Controller:
    """The build loop of one controller, with nodes and a worker of its own."""

    registry: Registry
    pool: NodePool

    def __post_init__(self) -> None:
        self.worker = Worker(self.registry)
        election = BuildElection(self.registry, lease_s=0.5, poll_s=0.01)
        self.state = FleetState("", 0)
        self.collectors = CollectorRegistry()
        recorder = PrometheusRecorder(BUILD_LOOP_METRICS, self.collectors)
        self.loop = BuildLoop(
            self.registry, self, self.worker, self.state, election=election, recorder=recorder
        )

    def pools(self) -> list[NodePool]:
        return [self.pool]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def stands_by(self) -> fleet.Standby:
        async with asyncio.timeout(LIMIT_S):
            async for snapshot in self.state.watch():
                if snapshot.HasField("standby"):
                    break
        return snapshot.standby

    def num_building(self) -> float | None:
        return self.collectors.get_sample_value("smelt_controller_builds")

    async def has_launched(self) -> None:
        assert await asyncio.to_thread(self.worker.has_launched.wait, LIMIT_S)


class StandbyLog(logging.Handler):
    """Sets an event when a controller says that it stands by."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.is_set = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.is_set.set()


@pytest.fixture
def standby() -> Iterator[StandbyLog]:
    handler, logger = StandbyLog(), logging.getLogger("services.controller.build.build_election")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return world.registry_with_model(tmp_path)


async def test_a_second_controller_stands_by_and_takes_over(
    registry: Registry, standby: StandbyLog
) -> None:
    first = Controller(registry, world.pool())
    other_nodes = world.pool(node_class=NodeClass(generation="cuda-sm90"))
    second = Controller(registry, other_nodes)
    async with contextlib.AsyncExitStack() as stack:
        async with first.running():
            await first.has_launched()
            await stack.enter_async_context(second.running())
            assert await asyncio.to_thread(standby.is_set.wait, LIMIT_S)
            await first.loop.sync()
            assert not second.worker.launched
            lease = registry.lease(CONTROLLER).lease
            assert lease is not None
            found = await second.stands_by()
            assert (found.holder, found.since) == (lease.holder_process, lease.taken_at)
            assert "This controller serves, and builds nothing" in found.reason
            assert (first.num_building(), second.num_building()) == (1.0, 0.0)
            assert not first.state.snapshot().HasField("standby")
            kinds = Counter(event.kind for _, event in registry.last_events(100))
            assert kinds[EventKind.GENERATION_APPEARED] == 1
            assert kinds[EventKind.GENERATION_GONE] == 0
        await second.has_launched()
        assert not second.state.snapshot().HasField("standby")
        assert (first.num_building(), second.num_building()) == (0.0, 1.0)
    assert len(standby.messages) == 1
    assert standby.messages[0].startswith("standby: ")
    assert registry.lease(CONTROLLER).is_free


async def test_a_controller_whose_lease_was_taken_stands_by(
    registry: Registry, standby: StandbyLog
) -> None:
    """As after it was suspended for longer than its lease."""
    controller = Controller(registry, world.pool())
    async with controller.running():
        await controller.has_launched()
        while not registry.offer_lease(CONTROLLER, registry.lease(CONTROLLER).number + 1, _taken()):
            pass
        while not standby.is_set.is_set():
            controller.loop.enqueue()
            await asyncio.sleep(0)
    assert "node-2 (process 7)" in standby.messages[0]
    assert registry.lease(CONTROLLER).lease == _taken()


async def test_a_lease_that_makes_no_sense_ends_no_loop(
    registry: Registry, standby: StandbyLog
) -> None:
    registry.offer_lease(CONTROLLER, 1, _taken().model_copy(update={"renewed_at": "yesterday"}))
    controller = Controller(registry, world.pool())
    async with controller.running():
        found = await controller.stands_by()
        assert (found.holder, found.since) == ("", "")
        assert "cannot be read: Invalid isoformat string" in found.reason
        registry.offer_lease(CONTROLLER, 2, _taken())
        while standby.is_set.clear() or "node-2" not in standby.messages[-1]:
            assert await asyncio.to_thread(standby.is_set.wait, LIMIT_S)
    assert "the lease for 3600 s" in standby.messages[-1]


async def test_one_that_has_the_lease_again_reads_what_others_recorded(registry: Registry) -> None:
    """Else what it recorded itself would look like the last word."""
    controller = Controller(registry, world.pool())
    controller.state.attach(replica("a", "e1"))
    async with controller.running():
        await controller.has_launched()
        await controller.loop.sync()
    assert (controller.loop.latest, controller.state.snapshot().builds) == (None, [])
    other = FleetState("", 0)
    other.attach(replica("b", ""))
    EventRecorder(registry).observe_replicas(other.snapshot())
    async with controller.running():
        await controller.loop.sync()
    kinds = [event.kind for _, event in registry.last_events(100)]
    served = [kind for kind in kinds if kind.value.endswith("_serving")]
    assert served == [
        EventKind.ENGINE_SERVING,
        EventKind.FALLBACK_SERVING,
        EventKind.ENGINE_SERVING,
    ]


def _taken() -> BuildLease:
    return BuildLease(
        holder="other",
        host="node-2",
        process_id=7,
        lease_s=3600.0,
        stage_since=world.AT,
        taken_at=world.AT,
        renewed_at="2999-01-01T00:00:00.000+00:00",
    )
