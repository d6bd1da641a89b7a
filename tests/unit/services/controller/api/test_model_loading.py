"""Models that are loaded and unloaded: a note in the store that each controller obeys."""

import asyncio
from pathlib import Path

import pytest

from services.contracts.errors import NotFoundError, UnsupportedFeatureError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.api.model_loading import Serving
from services.controller.interfaces import DeploymentKey
from tests.unit.services.controller.deploy.reconcile_world import (
    LIMIT_S,
    OLD,
    FakeFleet,
    Nodes,
    add,
    loop_over,
    until,
)


class _World:
    """A controller over a store that outlives it."""

    def __init__(self, folder: Path, *, fake: FakeFleet | None = None) -> None:
        self.registry = Registry(open_store(str(folder / "store")), folder / "cache")
        self.state, self.fake, self.nodes = FleetState("u", 1), fake or FakeFleet(), Nodes(OLD)
        self.loop = loop_over(self.registry, self.state, self.fake, self.nodes)
        self.serving = Serving(self.registry, self.state, self.loop, is_placing=True)


async def test_a_model_is_unloaded_and_loaded_again_also_by_another_controller(
    tmp_path: Path,
) -> None:
    world = _World(tmp_path)
    add(world.registry, "a")
    reply = await world.serving.set_served("m", is_served=True)
    assert (reply.is_ready, reply.reason) == (True, "")
    await world.serving.set_served("m", is_served=False, who="search-team")
    (model,) = world.state.models()
    assert (model.state, model.reason, model.num_replicas_wanted) == ("UNLOADING", "unloaded", 0)
    await world.loop.deployments.withdrawn()
    await until(world.state, {1: "UNAVAILABLE"})
    assert world.fake.removed == [("m", 1, OLD)]
    add(world.registry, "b")
    after = _World(tmp_path)
    await after.loop.reconcile_now()
    (model,) = after.state.models()
    assert (model.version, model.is_unloaded, after.fake.asked) == (2, True, [])
    assert (await after.serving.set_served("m", is_served=True)).is_ready
    assert [key for key, _ in after.fake.asked] == [("m", 2, OLD)]
    assert (await after.serving.set_served("m", is_served=True)).is_ready
    assert len(after.fake.asked) == 1
    who = [change.who for change in after.registry.serving_changes("m")]
    assert who == ["search-team", "a client of a gateway"]


async def test_a_model_that_is_loaded_while_it_goes_is_deployed_anew(tmp_path: Path) -> None:
    world = _World(tmp_path)
    add(world.registry, "a")
    await world.serving.set_served("m", is_served=True)
    running = asyncio.create_task(world.loop.run())
    await world.serving.set_served("m", is_served=False)
    reply = await asyncio.wait_for(world.serving.set_served("m", is_served=True), LIMIT_S)
    assert reply.is_ready
    assert (len(world.fake.removed), len(world.fake.asked)) == (1, 2)
    running.cancel()


async def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    world = _World(tmp_path)
    with pytest.raises(NotFoundError, match="model 'm' not found"):
        await world.serving.set_served("m", is_served=True)
    add(world.registry, "a")
    world.fake.fault = "out of memory"
    reply = await world.serving.set_served("m", is_served=True)
    assert (reply.is_ready, reply.reason) == (False, "out of memory")


async def test_where_somebody_else_places_replicas_nothing_is_unloaded(tmp_path: Path) -> None:
    world = _World(tmp_path)
    add(world.registry, "a")
    await world.serving.set_served("m", is_served=False)
    fake = FakeFleet()
    fake.is_placing, fake.present = False, [DeploymentKey("m", 1, OLD)]
    placed = _World(tmp_path, fake=fake)
    await placed.loop.reconcile_now()
    (model,) = placed.state.models()
    assert (model.state, model.is_unloaded) == ("READY", False)
    elsewhere = Serving(placed.registry, placed.state, placed.loop, is_placing=False)
    with pytest.raises(UnsupportedFeatureError, match="serveConfigV2"):
        await elsewhere.set_served("m", is_served=False)


async def test_nobody_waits_without_end_for_a_model_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.controller.api.model_loading.SETTLED_WITHIN_S", 0.01)
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    add(registry, "a")
    state, fake = FleetState("u", 1), FakeFleet()
    fake.starting = {("m", 1)}
    serving = Serving(registry, state, loop_over(registry, state, fake), is_placing=True)
    async with asyncio.timeout(LIMIT_S):
        reply = await serving.set_served("m", is_served=True)
    assert not reply.is_ready
    assert "goes on loading: replicas are starting" in reply.reason
