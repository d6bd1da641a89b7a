"""On-demand models on one GPU: who leaves when another one waits, and who comes back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.controller.api.model_loading import Serving
from services.controller.interfaces import DeploymentKey
from services.controller.room import Room
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller.deploy.on_demand_world import World
from tests.unit.services.controller.deploy.reconcile_world import (
    LIMIT_S,
    OLD,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_one_that_is_added_is_deployed_where_there_is_room_and_evicts_none(
    world: World,
) -> None:
    for name in "abc":
        await world.add(name)
        world.now_s += 60
    assert world.states == {"a": "READY", "b": "READY", "c": "STANDBY"}
    (model,) = (model for model in world.state.models() if model.name == "c")
    assert model.reason.startswith("on demand: not loaded; its next request loads it (evicted ")
    assert model.reason.endswith(f" UTC, as c version 1 on {OLD} had no capacity)")
    assert (model.num_replicas_wanted, model.unplaced) == (0, "")
    for _ in range(3):
        await world.sync()
    assert [key.name for key, _ in world.fake.asked] == ["a", "b", "c"]


async def test_the_next_one_begins_once_the_one_before_has_its_place(world: World) -> None:
    world.fake.starting.add(("a", 1))
    for name in "ab":
        await world.add(name, share=0.3)
    loop = asyncio.create_task(world.loop.run())
    # It looks again as long as what loads has no place.
    num_looks = world.fake.num_looks
    await world.until(lambda: world.fake.num_looks > num_looks + 1)
    assert [key.name for key, _ in world.fake.asked] == ["a"]
    loading = fleet.REPLICA_STATE_LOADING
    facts = json.dumps({"generation": OLD}).encode()
    world.state.attach(
        fleet.ReplicaReport(
            replica_id="r", model_name="a", model_version=1, state=loading, device_facts_json=facts
        )
    )
    await world.until(lambda: world.loaded() == "b")
    loop.cancel()
    assert world.states == {"a": "LOADING", "b": "READY"}


@pytest.mark.parametrize(
    ("used", "asked", "loaded"),
    [
        ("ab", "c", "bc"),
        ("ba", "c", "ac"),
        ("aba", "c", "ac"),
        ("ab", "cd", "cd"),
        ("ab", "cbd", "bd"),
        ("ab", "cac", "ac"),
        ("", "c", "bc"),
    ],
)
async def test_the_least_recently_used_one_leaves(
    world: World, used: str, asked: str, loaded: str
) -> None:
    for name in "abcd":
        await world.add(name)
    for name in used + asked:
        world.now_s += 3
        await world.ask(name)
    assert world.loaded() == loaded


async def test_one_that_is_in_use_stays_until_the_other_has_waited_for_its_turn(
    world: World,
) -> None:
    for name in "abc":
        await world.add(name)
    world.now_s += 8
    for name in "abc":
        await world.ask(name)
    assert world.states == {"a": "READY", "b": "READY", "c": "LOADING"}
    for _ in range(4):
        world.now_s += 1
        await world.ask("a")
        await world.ask("b")
    assert world.loaded() == "ab"
    world.now_s += 1
    world.loop.note_use("b", 0.5)
    await world.ask("a", seconds_ago=0.4)
    assert world.loaded() == "ac"
    # c was used before a, but has just come: it has its turn.
    world.now_s += 1
    await world.ask("b")
    world.now_s += 5
    world.loop.note_use("c")
    world.now_s += 0.5
    await world.ask("a")
    assert world.loaded() == "bc"


async def test_only_one_leaves_where_that_takes_long(world: World) -> None:
    for name in "abc":
        await world.add(name)
    world.now_s += 10
    world.fake.may_remove.clear()
    world.fake.starting.add(("c", 1))
    world.loop.note_use("c")
    await world.until(lambda: len(world.fake.present) == 3)
    await world.loop.on_demand.make_room()
    # Longer than Ray takes to place a replica.
    world.now_s += 4
    await world.loop.on_demand.make_room()
    world.fake.may_remove.set()
    await world.loop.deployments.withdrawn()
    # Ray shows a moment later what it has freed and placed.
    world.fake.unseen.add("c")
    world.now_s += 1
    await world.settle()
    assert (world.loaded(), world.states["c"]) == ("b", "LOADING")
    world.now_s += 3
    await world.settle()
    assert world.loaded() == "", "what Ray does not place all the same has another one leave"


async def test_a_pinned_model_has_others_leave_and_leaves_for_none(world: World) -> None:
    await world.add("a")
    await world.add("b")
    world.now_s += 10
    await world.ask("b")
    await world.add("p", residency="pinned")
    assert world.states == {"a": "STANDBY", "b": "READY", "p": "READY"}
    await world.add("q", residency="pinned")
    assert world.loaded() == "bp"
    world.now_s += 2
    await world.settle()
    assert world.loaded() == "pq"
    world.now_s += 100
    await world.ask("a")
    assert world.states["a"] == "LOADING"
    assert world.loaded() == "pq"


async def test_none_leaves_where_that_makes_too_little_room(world: World) -> None:
    await world.add("s", 0.1)
    await world.add("p", 0.3, "pinned")
    await world.add("l", 0.5)
    world.now_s += 10
    await world.add("whole", 0.8, "pinned")
    assert world.loaded() == "lps"
    world.registry.remove_model("whole")
    await world.sync()
    await world.add("half", 0.5, "pinned")
    assert world.loaded() == "halfps"


async def test_extra_replicas_are_given_up_before_a_model_leaves(world: World) -> None:
    await world.add("a", 0.25)
    await world.add("b", 0.25)
    await world.add("p", 0.5, "pinned")
    await world.add("c", 0.5)
    world.registry.remove_model("p")
    await world.sync()
    world.fake.extras[DeploymentKey("a", 1, OLD)] = 1
    world.now_s += 10
    await world.ask("c")
    assert (world.loaded(), world.states["c"]) == ("ab", "LOADING")
    world.fake.extras.clear()
    await world.settle()
    assert world.loaded() == "abc"


async def test_what_no_request_waits_for_leaves_the_queue(
    world: World,
) -> None:
    await world.add("p", 1.0, "pinned")
    await world.add("a")
    world.now_s += 5
    await world.ask("a")
    assert world.states["a"] == "LOADING"
    world.now_s += 29
    await world.settle()
    assert world.states["a"] == "LOADING"
    world.now_s += 1
    await world.settle()
    assert world.states == {"p": "READY", "a": "STANDBY"}
    assert world.figure(
        "smelt_on_demand_load_duration_seconds_count", model="a", outcome="withdrawn"
    )


async def test_another_controller_goes_on_with_what_is_loaded(world: World) -> None:
    for name in "abc":
        await world.add(name)
    world.now_s += 10
    await world.ask("c")
    assert world.loaded() == "bc"
    world.restart()
    await world.sync()
    await world.sync()
    assert world.states == {"a": "STANDBY", "b": "READY", "c": "READY"}
    world.now_s += 1
    await world.ask("a")
    # Its start counts as a use of all.
    assert world.states["a"] == "LOADING"
    world.now_s += 1
    await world.ask("c")
    assert world.loaded() == "ac"


async def test_a_new_version_is_what_is_loaded_next(world: World) -> None:
    for name in "abc":
        await world.add(name)
    await world.add("c")
    assert world.states == {"a": "READY", "b": "READY", "c2": "STANDBY"}
    world.now_s += 5
    await world.ask("c")
    assert world.states == {"a": "STANDBY", "b": "READY", "c2": "READY"}


async def test_a_new_version_without_room_waits_for_the_next_request(world: World) -> None:
    for name in "ab":
        await world.add(name)
    world.now_s += 5
    await world.add("b")
    assert world.states == {"a": "READY", "b": "READY", "b2": "STANDBY"}
    world.now_s += 1
    await world.ask("b")
    assert world.states == {"a": "STANDBY", "b": "READY", "b2": "READY"}


async def test_versions_that_share_requests_come_together(world: World) -> None:
    for name in "abc":
        await world.add(name, 0.3)
    await world.add("c", 0.3)
    world.registry.set_version_weights("c", {1: 90, 2: 10})
    await world.sync()
    world.now_s += 5
    await world.ask("c")
    assert world.loaded() == "bcc2"


async def test_it_is_unloaded_removed_and_loaded_as_any_other(world: World) -> None:
    for name in "abc":
        await world.add(name)
    world.now_s += 5
    serving = Serving(world.registry, world.state, world.loop, is_placing=True)
    running = asyncio.create_task(world.loop.run())
    async with asyncio.timeout(LIMIT_S):
        assert (await serving.set_served("c", is_served=True)).is_ready
    assert world.loaded() == "bc"
    await serving.set_served("c", is_served=False)
    await world.loop.deployments.withdrawn()
    await world.ask("c")
    assert world.states == {"a": "STANDBY", "b": "READY", "c": "UNAVAILABLE"}
    world.registry.remove_model("a")
    await world.loop.reconcile_now()
    await world.ask("a")
    assert set(world.states) == {"b", "c"}
    running.cancel()


async def test_one_that_fails_says_why_and_is_the_first_to_leave(world: World) -> None:
    for name in "abc":
        await world.add(name)
    world.now_s += 5
    world.fake.fault = "no such weights"
    await world.ask("c")
    await world.until(lambda: world.states["c"] == "UNAVAILABLE")
    (model,) = (model for model in world.state.models() if model.name == "c")
    assert model.reason == "no such weights"
    world.fake.fault = ""
    await world.ask("b")
    await world.add("s", 0.1, "pinned")
    assert world.states == {"a": "STANDBY", "b": "READY", "c": "STANDBY", "s": "READY"}


async def test_loads_and_evictions_are_counted(world: World) -> None:
    for name in "abc":
        await world.add(name)
    world.now_s += 5
    await world.ask("c")
    for name in "bac":
        world.now_s += 5
        await world.ask(name)
    labels: dict[str, Any] = {"model": "c", "outcome": "ready"}
    assert world.figure("smelt_on_demand_load_duration_seconds_count", **labels) == 2
    assert world.figure("smelt_on_demand_evictions_total", model="c") == 1
    labels["outcome"] = "withdrawn"
    assert world.figure("smelt_on_demand_load_duration_seconds_count", **labels) == 1


async def test_a_fleet_without_on_demand_models_is_asked_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> dict[str, Room]:
        raise AssertionError

    monkeypatch.setattr(world.fake, "rooms", refuse)
    await world.add("p", residency="pinned")
    await world.add("q", 0.6, "pinned")
    assert world.states == {"p": "READY", "q": "LOADING"}
