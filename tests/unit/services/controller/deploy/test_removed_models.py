"""A model or version that was removed from the store: its deployments are withdrawn."""

from pathlib import Path

from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from tests.unit.services.controller.deploy.reconcile_world import (
    OLD,
    FakeFleet,
    add,
    loop_over,
    ready,
    until,
)


async def test_a_removed_model_is_withdrawn(tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    registry.remove_model("m")
    await loop.reconcile_now()
    await until(state, {})
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]


async def test_a_removed_newest_version_goes_when_the_one_before_serves(tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    add(registry, "b")
    await loop.reconcile_now()
    await until(state, {2: "READY"})
    registry.remove_model("m", 2)
    await loop.reconcile_now()
    # Gateways go on with the removed one until the other serves.
    await until(state, {1: "READY", 2: "READY"})
    assert [key for key, _ in fake.asked] == [("m", 2, OLD), ("m", 1, OLD)]
    assert fake.removed == []
    state.attach(ready(1, OLD))
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    assert fake.removed == [("m", 2, OLD)]
