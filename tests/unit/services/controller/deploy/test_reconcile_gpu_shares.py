"""The reconcile loop: several models on one GPU, each with a share of it."""

import logging
from pathlib import Path

import pytest

from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey
from services.controller.room import Room
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.controller.deploy.reconcile_world import (
    OLD,
    FakeFleet,
    Nodes,
    add,
    ready,
    until,
    until_all_are,
    until_model,
)

KEY = DeploymentKey("m", 1, OLD)
NEXT = DeploymentKey("m", 2, OLD)
GIB = 2**30
# A context and two estimates of a model without weights, with headroom 1.62 GiB, of 99.1 GiB.
ESTIMATED = 0.0164


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


class World:
    """A loop over one GPU of 100 GiB, and its time."""

    def __init__(self, registry: Registry) -> None:
        self.now_s = 0.0
        self.registry = registry
        self.fake = FakeFleet()
        self.nodes = Nodes(OLD)
        self.nodes.memory_gib = 100
        self.restart()

    def restart(self) -> None:
        """Another controller, over what is deployed."""
        self.state = FleetState("u", 1)
        self.loop = ReconcileLoop(
            self.registry,
            self.nodes,
            self.state,
            self.fake,
            {},
            resync_s=60,
            withdraw_after_s=0,
            clock=lambda: self.now_s,
        )

    def prove(self, master: str, held_gib: float, generation: str = OLD) -> None:
        another = {"held": f"{held_gib}"}
        key = small_key(master_digest=master, generation=generation, toolchain=another)
        held = {"peak_memory_bytes": int(held_gib * GIB), "eager_peak_memory_bytes": GIB}
        proof = small_proof(ProofOutcome.PASSED).model_copy(update=held)
        self.registry.publish_engine(small_manifest(key), {}, proof)

    async def sync(self, *versions: int) -> None:
        await self.loop.reconcile()
        await until(self.state, dict.fromkeys(versions, "READY"))

    @property
    def asked(self) -> list[tuple[DeploymentKey, float | None]]:
        return [(key, args.get("gpu_share")) for key, args in self.fake.asked]


async def test_a_larger_share_is_asked_for_once_and_never_a_smaller_one(
    registry: Registry,
) -> None:
    world = World(registry)
    master = add(registry, "a").master.digest
    await world.sync(1)
    assert world.asked == [(KEY, ESTIMATED)]
    # 0.52 + 1.0 + 0.1 GiB: 0.01635 is within what it has, as the headroom was left for it.
    world.prove(master, 0.1)
    world.prove(master, 50, generation="cuda-sm75")
    for _ in range(3):
        await world.sync(1)
    assert world.asked == [(KEY, ESTIMATED)]
    # 0.52 + 1.1 * (1.0 + 2.0) GiB.
    world.prove(master, 2)
    for _ in range(3):
        await world.sync(1)
    assert world.asked[1:] == [(KEY, 0.0386)]
    world.nodes.memory_gib = 200
    for _ in range(3):
        await world.sync(1)
    assert len(world.asked) == 2


async def test_another_controller_leaves_a_share_that_does_alone(registry: Registry) -> None:
    world = World(registry)
    master = add(registry, "a").master.digest
    await world.sync(1)
    world.restart()
    for _ in range(3):
        await world.sync(1)
    assert len(world.asked) == 1
    world.prove(master, 2)
    for _ in range(3):
        await world.sync(1)
    assert world.asked[1:] == [(KEY, 0.0386)]


@pytest.mark.parametrize("num_gpus", [1.0, 2.0])
async def test_a_larger_share_waits_for_room_on_one_gpu_and_what_serves_goes_on(
    registry: Registry, caplog: pytest.LogCaptureFixture, num_gpus: float
) -> None:
    world = World(registry)
    world.fake.num_gpus = num_gpus
    master = add(registry, "a").master.digest
    await world.sync(1)
    world.prove(master, 2)
    world.fake.free = num_gpus * 0.0385
    for _ in range(3):
        await world.sync(1)
    assert world.asked == [(KEY, ESTIMATED)]
    assert caplog.text.count("no 0.0386 of one free") == 1
    world.fake.free = num_gpus * 0.0386
    await world.sync(1)
    assert world.asked[1:] == [(KEY, 0.0386)]


async def test_replicas_with_larger_shares_start_one_after_the_other(registry: Registry) -> None:
    world = World(registry)
    masters = [add(registry, each, each).master.digest for each in ("a", "b")]
    await world.loop.reconcile()
    await until_all_are(world.state, "READY")
    for master in masters:
        world.prove(master, 2)
    world.fake.starting = {("a", 1), ("b", 1)}
    for _ in range(2):
        await world.loop.reconcile()
    assert sorted(model.state for model in world.state.models()) == ["LOADING", "READY"]
    world.fake.starting.clear()
    await until_all_are(world.state, "READY")
    await world.loop.reconcile()
    await until_all_are(world.state, "READY")
    assert sorted(key.name for key, _ in world.asked[2:]) == ["a", "b"]


@pytest.mark.parametrize("held", [0.0, 1.0])
async def test_a_simulation_and_a_whole_gpu_never_need_more(
    registry: Registry, held: float
) -> None:
    world = World(registry)
    master = add(registry, "a").master.digest
    await world.sync(1)
    world.fake.shares[KEY] = held
    world.prove(master, 300)
    for _ in range(3):
        await world.sync(1)
    assert len(world.asked) == 1


@pytest.mark.parametrize(("generation", "share"), [(OLD, 1.0), ("cpu-x86_64-v3", None)])
async def test_without_the_memory_of_the_gpus_each_replica_has_one_and_none_on_cpus(
    registry: Registry, generation: str, share: float | None
) -> None:
    world = World(registry)
    world.nodes.generations = [generation]
    world.nodes.memory_gib = 0
    add(registry, "a")
    await world.sync(1)
    assert world.asked == [(DeploymentKey("m", 1, generation), share)]


async def test_what_serves_is_not_disturbed_while_its_shares_are_unknown(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(registry)
    master = add(registry, "a").master.digest

    def broken() -> dict[str, Room]:
        raise RuntimeError("Serve is away")

    with monkeypatch.context() as patch:
        patch.setattr(world.fake, "rooms", broken)
        world.prove(master, 2)
        await world.sync(1)
        world.prove(master, 30)
        await world.sync(1)
        assert world.asked == [(KEY, 0.0386)]
    await world.sync(1)
    assert [share for _, share in world.asked] == [0.0386, 0.3605]


async def _full(world: World, *, gives_way: tuple[DeploymentKey, ...]) -> None:
    """Version 1 serves, and version 2 has no room, since now."""
    add(world.registry, "a")
    await world.sync(1)
    world.state.attach(ready(1, OLD))
    add(world.registry, "b")
    world.fake.starting, world.fake.no_room = {("m", 2)}, "needs 9 GiB; held by m version 1: 99 GiB"
    world.fake.gives_way = gives_way
    await world.loop.reconcile()
    world.now_s += 10.0
    await until_model(world.state, lambda model: model.unplaced == world.fake.no_room)


async def test_on_a_full_gpu_the_old_version_makes_room_for_the_new_one(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(registry)
    await _full(world, gives_way=(KEY,))
    world.now_s += 9.0
    await world.loop.reconcile()
    assert world.fake.removed == []
    world.now_s += 1.0
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await world.loop.reconcile()
        await world.loop.deployments.withdrawn()
    assert world.fake.removed == [KEY]
    assert (
        caplog.text.count(f"m version 1 on {OLD} is withdrawn to free capacity for version 2") == 1
    )
    world.fake.starting.clear()
    await world.sync(2)
    assert [key for key, _ in world.asked] == [KEY, NEXT]


async def test_an_old_version_makes_no_room_for_one_that_failed(registry: Registry) -> None:
    world = World(registry)
    await _full(world, gives_way=(KEY,))
    world.fake.fault = "its weights are broken"
    await until(world.state, {1: "READY", 2: "UNAVAILABLE"})
    world.now_s += 12.0
    await world.loop.reconcile()
    await world.loop.deployments.withdrawn()
    assert world.fake.removed == []


async def test_an_old_version_stays_where_that_would_make_no_room(registry: Registry) -> None:
    world = World(registry)
    await _full(world, gives_way=())
    world.now_s += 60.0
    await world.loop.reconcile()
    await world.loop.deployments.withdrawn()
    assert world.fake.removed == []


async def test_versions_that_share_requests_make_no_room_for_each_other(
    registry: Registry,
) -> None:
    world = World(registry)
    await _full(world, gives_way=(KEY,))
    registry.set_version_weights("m", {1: 90, 2: 10})
    world.now_s += 60.0
    await world.loop.reconcile()
    await world.loop.deployments.withdrawn()
    assert world.fake.removed == []
