"""Serve hangs, forgets or is slow: what the reconcile loop makes of it."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import NotReadyError
from services.contracts.events import EventKind
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.deployment import DeploymentState
from services.controller.deploy.deployments import Deployments
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.events.event_recorder import EventRecorder
from services.controller.interfaces import DeploymentKey, NodePool
from services.pb import fleet_v1_pb2 as fleet
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.controller.deploy.reconcile_world import (
    LIMIT_S,
    NEW,
    OLD,
    FakeFleet,
    Nodes,
    add,
    loop_over,
    ready,
    until,
    until_model,
)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


class HangingFleet(FakeFleet):
    """Serve takes some models' applications only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs: set[str] = set()
        self.let_go = threading.Event()

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        if key.name in self.hangs:
            self.let_go.wait(LIMIT_S)
        super().deploy(key, args)


@pytest.fixture
def hanging() -> Iterator[HangingFleet]:
    fake = HangingFleet()
    yield fake
    fake.let_go.set()


@pytest.fixture
def state() -> FleetState:
    return FleetState("u", 1)


@pytest.fixture
def impatient(registry: Registry, state: FleetState, hanging: HangingFleet) -> ReconcileLoop:
    """A loop over `hanging` that waits a tenth of a second for Serve."""
    return ReconcileLoop(
        registry,
        Nodes(OLD),
        state,
        hanging,
        {},
        resync_s=60,
        withdraw_after_s=0,
        submit_timeout_s=0.1,
    )


async def test_models_are_known_once_a_pass_went_well(
    registry: Registry, state: FleetState
) -> None:
    add(registry, "a")
    fake = FakeFleet()
    loop = loop_over(registry, state, fake)
    fake.broken.append(NotReadyError("Ray did not answer"))
    with pytest.raises(NotReadyError):
        await loop.reconcile_now()
    assert await state.looked() == "Ray did not answer"
    assert not state.models()
    await loop.reconcile_now()
    assert await state.looked() == ""
    assert state.models()


async def test_nodes_that_hang_keep_no_pass_from_ending(
    registry: Registry, state: FleetState
) -> None:
    add(registry, "a")
    let_go = threading.Event()

    class HangingNodes(Nodes):
        def pools(self) -> list[NodePool]:
            let_go.wait()
            return super().pools()

    fake = FakeFleet()
    nodes = HangingNodes(OLD)
    loop = ReconcileLoop(
        registry, nodes, state, fake, {}, resync_s=60, withdraw_after_s=0, ask_timeout_s=0.05
    )
    async with asyncio.timeout(LIMIT_S):
        await loop.reconcile_now()
    assert not fake.asked
    let_go.set()
    await loop.reconcile_now()
    await until_model(state, lambda m: m.state == "READY")


async def test_a_deploy_that_hangs_is_told_and_what_serves_can_still_be_removed(
    registry: Registry, hanging: HangingFleet, state: FleetState, impatient: ReconcileLoop
) -> None:
    add(registry, "a", "old")
    await impatient.reconcile_now()
    await until_model(state, lambda m: m.name == "old" and m.state == "READY")
    hanging.hangs.add("m")
    add(registry, "b", "m")
    registry.remove_model("old")
    await impatient.reconcile_now()
    await until_model(state, lambda m: m.name == "m" and "did not take" in m.reason)
    async with asyncio.timeout(LIMIT_S):
        await impatient.deployments.withdrawn()
    assert hanging.removed == [("old", 1, OLD)]


async def test_a_deploy_that_hangs_does_not_keep_it_from_being_withdrawn(
    registry: Registry, hanging: HangingFleet, state: FleetState, impatient: ReconcileLoop
) -> None:
    hanging.hangs.add("m")
    add(registry, "a")
    await impatient.reconcile_now()
    registry.remove_model("m")
    # Serve had it after all, but the call does not return.
    hanging.present.append(DeploymentKey("m", 1, OLD))
    await impatient.reconcile_now()
    async with asyncio.timeout(LIMIT_S):
        await impatient.deployments.withdrawn()
    assert hanging.removed == [("m", 1, OLD)]


async def test_what_serve_takes_late_and_nobody_wants_any_more_is_removed(
    registry: Registry, hanging: HangingFleet, state: FleetState, impatient: ReconcileLoop
) -> None:
    hanging.hangs.add("m")
    add(registry, "a")
    await impatient.reconcile_now()
    await until(state, {1: "UNAVAILABLE"})
    hanging.present.append(DeploymentKey("m", 1, OLD))
    registry.remove_model("m")
    for _ in range(2):
        await impatient.reconcile_now()
        await impatient.deployments.withdrawn()
    hanging.present.append(DeploymentKey("m", 1, OLD))  # the late one
    await impatient.reconcile_now()
    await impatient.deployments.withdrawn()
    assert hanging.present == []


async def test_what_was_deleted_behind_our_back_is_deployed_again(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    fake.present.clear()
    await loop.reconcile_now()
    assert len(fake.asked) == 1  # one list may be older than the deployment
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    assert len(fake.asked) == 2
    await loop.reconcile_now()
    await loop.reconcile_now()
    assert len(fake.asked) == 2


@pytest.mark.parametrize("knows_its_device", [True, False])
async def test_replicas_of_an_earlier_controller_may_load_for_as_long_as_they_need(
    registry: Registry, *, knows_its_device: bool
) -> None:
    state, fake, now = FleetState("u", 1), FakeFleet(), [0.0]
    fake.present = [DeploymentKey("m", 1, OLD)]
    fake.starting = {("m", 1)}
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now[0])
    add(registry, "a")
    await loop.reconcile_now()
    loading = ready(1, OLD)
    loading.state = fleet.REPLICA_STATE_LOADING
    if not knows_its_device:
        loading.ClearField("device_facts_json")
    state.attach(loading)
    now[0] = 1000
    await loop.reconcile_now()
    assert fake.asked == []


async def test_what_fails_is_tried_after_pauses_that_double_or_when_somebody_asks(
    registry: Registry,
) -> None:
    now_s = [0.0]
    state, fake = FleetState("u", 1), FakeFleet()
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now_s[0])
    add(registry, "a")
    fake.fault = "out of memory"
    tried = []
    for now_s[0] in (0, 10, 15, 16, 30, 44, 45, 100, 105):
        await loop.reconcile()
        await until(state, {1: "UNAVAILABLE"})
        if len(fake.asked) > len(tried):
            tried.append(now_s[0])
    assert tried == [0, 15, 45, 105]
    await loop.reconcile_now()
    await until(state, {1: "UNAVAILABLE"})
    assert len(fake.asked) == 5


async def test_what_fails_for_want_of_an_engine_is_tried_once_there_is_one(
    registry: Registry,
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: 0.0)
    master = add(registry, "a").master.digest
    fake.fault = "no engine, and no fallback"
    for _ in range(3):
        await loop.reconcile()
        await until(state, {1: "UNAVAILABLE"})
    assert len(fake.asked) == 1
    key = small_key(master_digest=master)
    registry.publish_engine(small_manifest(key), {}, small_proof(ProofOutcome.PASSED))
    await loop.reconcile()
    await until(state, {1: "UNAVAILABLE"})
    assert len(fake.asked) == 2


async def test_a_model_that_no_node_has_room_for_says_why_until_it_has(
    registry: Registry,
) -> None:
    now_s = [0.0]
    state, fake = FleetState("u", 1), FakeFleet()
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now_s[0])
    add(registry, "a")
    fake.starting, fake.no_room = {("m", 1)}, "each wants 1 GPU; node n has 1 GPU, held by other"
    await loop.reconcile()
    await until_model(state, lambda model: model.state == "LOADING")
    (model,) = state.models()
    assert (model.unplaced, model.reason) == ("", "replicas are starting")
    now_s[0] = 10.0
    await until_model(state, lambda model: model.unplaced == fake.no_room)
    (model,) = state.models()
    assert (model.state, model.reason) == ("LOADING", fake.no_room)
    trail = EventRecorder(registry)
    for _ in range(2):
        trail.observe_replicas(state.snapshot())
    ((_, event),) = registry.last_events(9)
    assert (event.kind, event.why) == (EventKind.REPLICAS_UNPLACED, fake.no_room)
    fake.no_room = ""
    await until_model(state, lambda model: not model.unplaced)
    fake.starting = set()
    await until(state, {1: "READY"})


async def test_no_deployment_is_waited_for_without_end(registry: Registry) -> None:
    now_s = [0.0]
    state, fake = FleetState("u", 1), FakeFleet()
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now_s[0])
    add(registry, "a")
    fake.starting = {("m", 1)}
    await loop.reconcile()
    now_s[0] = 3600.0
    await until(state, {1: "UNAVAILABLE"})
    assert "not ready within 3600 s" in state.models()[0].reason


async def test_no_application_that_stays_is_waited_for_without_end() -> None:
    class Kept(FakeFleet):
        def remove(self, key: DeploymentKey) -> None:
            """Serve says that it does."""

        def deployed(self) -> list[DeploymentKey]:
            now_s[0] += 200.0
            return [key]

    now_s, key = [0.0], DeploymentKey("m", 1, OLD)
    callbacks = {"on_change": lambda _: None, "on_success": lambda: None}
    found = Deployments(Kept(), FleetThreads(), clock=lambda: now_s[0], **callbacks)
    found.withdraw(key)
    async with asyncio.timeout(LIMIT_S):
        await found.withdrawn()
    assert now_s[0] == 400.0


async def test_a_version_that_serves_here_and_fails_there_says_so(registry: Registry) -> None:
    class Partial(FakeFleet):
        def is_running(self, key: DeploymentKey) -> bool:
            if key.generation == NEW:
                raise NotReadyError("no memory")
            return super().is_running(key)

    state = FleetState("u", 1)
    loop = ReconcileLoop(registry, Nodes(OLD, NEW), state, Partial(), {}, resync_s=60)
    add(registry, "a")
    await loop.reconcile_now()
    await until_model(state, lambda m: m.state == "READY" and "no memory" in m.reason)
    assert state.models()[0].reason == f"on {NEW}: no memory"


async def test_a_deployment_that_failed_a_thousand_times_is_tried_again_and_withdrawn(
    registry: Registry,
) -> None:
    """Once in ten minutes that is a week; 2.0**1024 is no float."""
    now_s, fake, changed = [0.0], FakeFleet(), asyncio.Event()
    version = add(registry, "f1")
    fake.fault = "no such image"
    deployments = Deployments(
        fake,
        FleetThreads(),
        on_change=lambda _: changed.set(),
        on_success=lambda: None,
        clock=lambda: now_s[0],
    )
    key = DeploymentKey(version.name, version.version, OLD)
    for _ in range(1100):
        deployments.start(key, version, {})
        await changed.wait()
        changed.clear()
        assert deployments.state(*key[:2])[0] is DeploymentState.UNAVAILABLE
        assert not deployments.is_due_again(key)
        now_s[0] += 601.0
        assert deployments.is_due_again(key)
    assert len(fake.asked) == 1100
    deployments.withdraw(key)
    await deployments.withdrawn()
    assert fake.removed == [key]
    assert key not in deployments
