"""The reconcile loop: versions come, fail and go; the loop outlives what Ray raises."""

import asyncio
from pathlib import Path

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey
from services.controller.platform.ray.replica_fleet import load_function
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller.deploy.reconcile_world import (
    LIMIT_S,
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
def store(tmp_path: Path) -> ObstoreArtifactStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def registry(store: ObstoreArtifactStore, tmp_path: Path) -> Registry:
    return Registry(store, tmp_path / "cache")


async def test_a_published_model_is_deployed_once(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    await loop.reconcile_now()
    assert fake.asked == []
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    await loop.reconcile_now()
    assert [key for key, _ in fake.asked] == [("m", 1, OLD)]
    assert list(state.snapshot().metrics_addresses) == ["h:1"]
    args = fake.asked[0][1]
    assert (args["store_url"], args["num_replicas"], args["generation"]) == ("u", "auto", OLD)


class CountingState(FleetState):
    """Counts how often the state of a version is published."""

    num_published = 0

    def set_model(self, model: fleet.ServedModel) -> None:
        self.num_published += 1
        super().set_model(model)


async def test_a_deployment_that_gets_ready_publishes_its_own_model_alone(
    registry: Registry,
) -> None:
    """With hundreds of models, each of hundreds of changes would cost one of all of them."""
    names = [f"m{number}" for number in range(30)]
    for name in names:
        add(registry, name, name)
    state = CountingState("u", 1)
    await loop_over(registry, state, FakeFleet()).reconcile()
    async with asyncio.timeout(LIMIT_S):
        async for _ in state.watch():
            if [model.state for model in state.models()] == ["READY"] * len(names):
                break
    assert state.num_published <= 2 * len(names)


async def test_a_failed_deploy_is_shown_and_tried_again(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    fake.fault = "out of memory"
    await loop.reconcile_now()
    await until(state, {1: "UNAVAILABLE"})
    assert state.models()[0].reason == "out of memory"
    fake.fault = ""
    await loop.reconcile_now()
    await until(state, {1: "READY"})


async def test_an_old_version_goes_only_when_the_new_one_serves(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    add(registry, "b")
    await loop.reconcile_now()
    await until(state, {1: "READY", 2: "READY"})
    assert fake.removed == []
    state.attach(ready(2, OLD))
    await loop.reconcile_now()
    await until(state, {2: "READY"})
    assert fake.removed == [("m", 1, OLD)]


async def _replace(registry: Registry, state: FleetState, loop: ReconcileLoop) -> None:
    """Publish version 2 and have a replica of it ready."""
    add(registry, "b")
    await loop.reconcile_now()
    await until_model(state, lambda m: m.version == 2 and m.state == "READY")
    state.attach(ready(2, OLD))


async def test_an_old_version_that_never_got_ready_goes_too(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    fake.starting.add(("m", 1))
    add(registry, "a")
    await loop.reconcile_now()
    await _replace(registry, state, loop)
    await loop.reconcile_now()
    await until(state, {2: "READY"})
    assert fake.removed == [("m", 1, OLD)]


async def test_an_old_version_that_failed_goes_too(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    fake.fault = "out of memory"
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "UNAVAILABLE"})
    fake.fault = ""
    await _replace(registry, state, loop)
    await loop.reconcile_now()
    await until(state, {2: "READY"})


async def test_a_removal_that_fails_is_tried_again(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await _replace(registry, state, loop)
    fake.removal_fault = "Serve is away"
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert f"retiring m version 1 on {OLD} failed" in caplog.text
    assert fake.removed == []
    fake.removal_fault = ""
    await loop.reconcile_now()
    await until(state, {2: "READY"})
    assert fake.removed == [("m", 1, OLD)]


async def test_models_that_load_for_long_leave_room_for_others(registry: Registry) -> None:
    # More than the threads that asyncio has for blocking calls on any machine.
    names = [f"slow{number}" for number in range(40)]
    state, fake = FleetState("u", 1), FakeFleet()
    fake.starting = {(name, 1) for name in names}
    loop = loop_over(registry, state, fake)
    for name in names:
        add(registry, "a", name)
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(LIMIT_S):
        async for snapshot in state.watch():
            if len(snapshot.models) == len(names):
                break
        add(registry, "b")
        await loop.reconcile_now()
        await until_model(state, lambda m: m.name == "m" and m.state == "READY")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(LIMIT_S):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*left, return_exceptions=True)


async def test_a_model_that_cannot_be_read_keeps_no_other_from_serving(
    registry: Registry, store: ObstoreArtifactStore, caplog: pytest.LogCaptureFixture
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    add(registry, "a")
    store.create("models/newer/versions/000001.json", b'{"of": "tomorrow"}')
    await loop_over(registry, state, fake).reconcile_now()
    await until(state, {1: "READY"})
    assert "model 'newer' is left as it is" in caplog.text


async def test_the_loop_outlives_whatever_ray_raises(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    fake.broken.append(RuntimeError("no GCS"))
    loop = ReconcileLoop(registry, Nodes(OLD), state, fake, {}, resync_s=0.01)
    add(registry, "a")
    running = asyncio.create_task(loop.run())
    await until(state, {1: "READY"})
    assert "no GCS" in caplog.text
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_loop_runs_by_itself_and_ends_when_cancelled(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    add(registry, "a")
    running = asyncio.create_task(loop_over(registry, state, fake).run())
    await until(state, {1: "READY"})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_replica_app_is_found_by_import_path_or_refused() -> None:
    assert load_function("json:dumps")({"a": 1}) == '{"a": 1}'
    with pytest.raises(InvalidRequestError, match="expected package.module:function"):
        load_function("no_such_package.module:application")


async def test_an_engine_serves_on_while_one_of_the_next_version_is_on_its_way(
    registry: Registry,
) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    former = ready(1, OLD, "r1")
    former.engine_digest = "of version 1"
    state.attach(former)
    add(registry, "b")
    state.set_builds(
        [fleet.FleetBuild(model_name="m", model_version=2, generation=OLD)], {("m", 2)}
    )
    # Without room beside the old one it waits for its engine too.
    fake.gives_way = (DeploymentKey("m", 1, OLD),)
    await loop.reconcile_now()
    await until(state, {1: "READY", 2: "READY"})
    newer = state.attach(ready(2, OLD, "r2"))
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == []
    with_engine = ready(2, OLD, "r2")
    with_engine.engine_digest = "of version 2"
    state.update(newer, with_engine)
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]
