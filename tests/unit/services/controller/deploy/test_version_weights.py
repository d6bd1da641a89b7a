"""The reconcile loop: versions that share requests serve side by side."""

from pathlib import Path

import pytest

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


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def _weights(state: FleetState) -> dict[int, float]:
    return {model.version: model.weight for model in state.models()}


async def test_an_older_version_stays_while_it_has_a_share(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    await loop.reconcile_now()
    await until(state, {1: "READY"})
    state.attach(ready(1, OLD, "r1"))
    registry.set_version_weights("m", {1: 95})
    add(registry, "b")
    await loop.reconcile_now()
    await until(state, {1: "READY", 2: "READY"})
    state.attach(ready(2, OLD, "r2"))
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == []
    assert _weights(state) == {1: 95.0, 2: 0.0}
    registry.set_version_weights("m", {1: 95, 2: 5})
    await loop.reconcile_now()
    assert _weights(state) == {1: 95.0, 2: 5.0}
    registry.set_version_weights("m", {})
    await loop.reconcile_now()
    await loop.deployments.withdrawn()
    assert fake.removed == [("m", 1, OLD)]


async def test_a_withdrawn_version_that_gets_a_share_comes_back(registry: Registry) -> None:
    state, fake = FleetState("u", 1), FakeFleet()
    loop = loop_over(registry, state, fake)
    add(registry, "a")
    add(registry, "b")
    await loop.reconcile_now()
    await until(state, {2: "READY"})
    registry.set_version_weights("m", {1: 1, 2: 1})
    await loop.reconcile_now()
    await until(state, {1: "READY", 2: "READY"})
    assert [key for key, _ in fake.asked] == [("m", 2, OLD), ("m", 1, OLD)]
    registry.remove_model("m", 1)
    await loop.reconcile_now()
    assert _weights(state)[2] == 1.0
    assert _weights(state).get(1, 0.0) == 0.0
