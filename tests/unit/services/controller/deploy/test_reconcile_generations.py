"""The reconcile loop: generations come and go, and earlier controllers left things behind."""

import asyncio
from pathlib import Path

import pytest

from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey
from services.controller.platform.kubernetes.placed_by_ray_service import PlacedByRayService
from services.controller.platform.ray.replica_fleet import application_name, key_from_application
from tests.unit.services.controller.deploy.reconcile_world import (
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


async def test_a_new_generation_is_served_too_and_one_that_left_is_withdrawn(
    registry: Registry,
) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD)
    loop = loop_over(registry, state, fake, nodes)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    nodes.generations.append(NEW)
    await loop.reconcile_now()
    assert state.models()[0].num_replicas_wanted == 2
    await until_model(state, lambda m: not m.reason)
    assert [key.generation for key, _ in fake.asked] == [OLD, NEW]
    nodes.generations.remove(OLD)
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]
    assert state.models()[0].num_replicas_wanted == 1


async def test_a_generation_that_is_away_for_a_moment_keeps_its_replicas(
    registry: Registry,
) -> None:
    state, fake, nodes, now = FleetState("u", 1), FakeFleet(), Nodes(OLD, NEW), [0.0]
    loop = ReconcileLoop(
        registry, nodes, state, fake, {}, resync_s=60, withdraw_after_s=10, clock=lambda: now[0]
    )
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    nodes.generations.remove(OLD)
    now[0] = 10
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == []
    now[0] = 11
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]


async def test_unknown_nodes_change_nothing(registry: Registry) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD)
    loop = loop_over(registry, state, fake, nodes)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    nodes.fault = "Ray is away"
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == []


async def test_the_new_version_must_serve_where_the_old_one_does(registry: Registry) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD, NEW)
    loop = loop_over(registry, state, fake, nodes)
    add(registry, "a")
    await loop.reconcile_now()
    add(registry, "b")
    await loop.reconcile_now()
    await until(state, {1: "READY", 2: "READY"})
    state.attach(ready(2, NEW))
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, NEW)]


async def test_what_an_earlier_controller_deployed_is_withdrawn_when_nobody_wants_it(
    registry: Registry,
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    gone = DeploymentKey("gone", 3, OLD)
    fake.present = [gone, DeploymentKey("m", 1, OLD)]
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [gone]
    assert {m.version: m.state for m in state.models()} == {1: "READY"}


async def test_without_any_node_a_model_says_so(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    add(registry, "a")
    await loop_over(registry, state, fake, Nodes()).reconcile_now()
    (model,) = state.models()
    assert (model.state, model.reason) == (
        "UNAVAILABLE",
        "nowhere to go",
    )


def test_applications_are_named_after_deployments() -> None:
    key = DeploymentKey("my-model.2", 12, "cpu-x86_64-v3")
    assert key_from_application(application_name(key)) == key
    assert key_from_application("somebody-elses") is None
    assert key_from_application("smelt:of:somebody") is None


async def test_an_earlier_controllers_deployment_is_kept_unless_nobody_of_it_attaches(
    registry: Registry,
) -> None:
    state, fake, now = FleetState("u", 1), FakeFleet(), [0.0]
    key = DeploymentKey("m", 1, OLD)
    fake.present = [key]
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now[0])
    add(registry, "a")
    await loop.reconcile_now()
    now[0] = 60
    await loop.reconcile_now()
    assert fake.asked == []
    now[0] = 61
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    assert [asked for asked, _ in fake.asked] == [key]


async def test_an_earlier_controllers_deployment_that_attached_is_never_deployed_again(
    registry: Registry,
) -> None:
    state, fake, now = FleetState("u", 1), FakeFleet(), [0.0]
    fake.present = [DeploymentKey("m", 1, OLD)]
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=60, clock=lambda: now[0])
    add(registry, "a")
    attached = state.attach(ready(1, OLD))
    await loop.reconcile_now()
    state.detach(attached)
    now[0] = 1000
    await loop.reconcile_now()
    assert fake.asked == []


async def test_an_earlier_controllers_deployment_that_failed_is_deployed_again(
    registry: Registry,
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    key = DeploymentKey("m", 1, OLD)
    fake.present, fake.fault = [key], "out of memory"
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "UNAVAILABLE"})
    fake.fault = ""
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    assert {asked for asked, _ in fake.asked} == {key}


async def test_where_a_ray_service_places_what_attached_is_what_is_served(
    registry: Registry,
) -> None:
    state = FleetState("u", 1)
    placed = PlacedByRayService(state, lambda _, version: {1: 6}.get(version, 0))
    loop = ReconcileLoop(registry, Nodes(OLD), state, placed, {}, resync_s=60)
    add(registry, "a")
    add(registry, "b")
    running = asyncio.create_task(loop.run())
    await until(state, {2: "UNAVAILABLE"})
    assert "serveConfigV2" in state.models()[0].reason
    # Published, and not listed: nobody asked for a replica of it.
    assert state.models()[0].num_replicas_wanted == 0
    # A rollback: the older version serves, on a generation that no node is labelled with.
    attached = state.attach(ready(1, NEW))
    await until(state, {1: "READY", 2: "UNAVAILABLE"})
    # Of one generation all replicas are lost: what is asked for is not what is there.
    wanted = {model.version: model.num_replicas_wanted for model in state.models()}
    assert wanted == {1: 6, 2: 0}
    # Its line broke: while it may serve on, its version stays known.
    state.detach(attached)
    await loop.reconcile_now()
    await until(state, {1: "READY", 2: "UNAVAILABLE"})
    state.forget(attached)
    await until(state, {2: "UNAVAILABLE"})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_restarted_controller_withdraws_nothing_before_it_knows_the_nodes(
    registry: Registry,
) -> None:
    state, fake, nodes, now = FleetState("u", 1), FakeFleet(), Nodes(), [0.0]
    key = DeploymentKey("m", 1, OLD)
    fake.present, nodes.fault = [key], "Ray is starting"
    loop = ReconcileLoop(
        registry, nodes, state, fake, {}, resync_s=60, withdraw_after_s=10, clock=lambda: now[0]
    )
    add(registry, "a")
    await loop.reconcile_now()
    nodes.fault = ""  # the node itself comes back later than Ray
    await loop.reconcile_now()
    now[0] = 10
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == []
    now[0] = 11
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [key]


async def test_a_failed_deployment_that_is_wanted_no_more_is_removed(registry: Registry) -> None:
    state, fake, nodes = FleetState("u", 1), FakeFleet(), Nodes(OLD)
    fake.fault = "out of memory"
    loop = loop_over(registry, state, fake, nodes)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "UNAVAILABLE"})
    nodes.generations = [NEW]
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]
