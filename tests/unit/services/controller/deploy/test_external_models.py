"""The reconcile loop with external models: shown and checked, and never deployed or built."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.contracts.external.external_model import ExternalModel
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.api.model_loading import Serving
from services.controller.build.build_reader import ViewReader
from services.controller.build.key_status import RetryPolicy
from services.controller.deploy.reconcile import ReconcileLoop
from tests.unit.services.controller.deploy.reconcile_world import (
    FakeFleet,
    add,
    loop_over,
    until_model,
)

# Nobody listens there.
CHAT = ExternalModel(name="chat", version=0, url="openai+http://127.0.0.1:9/v1", remote_name="m")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


@pytest.fixture
async def state() -> FleetState:
    return FleetState("u", 1)


@pytest.fixture
async def loop(registry: Registry, state: FleetState) -> AsyncIterator[ReconcileLoop]:
    loop = loop_over(registry, state, FakeFleet())
    yield loop
    await loop.externals.close()


async def test_versions_are_checked_shown_and_withdrawn(
    registry: Registry, state: FleetState, loop: ReconcileLoop
) -> None:
    add(registry, "a")
    registry.add_external_version(CHAT)
    registry.add_external_version(CHAT.model_copy(update={"remote_name": "n"}))
    registry.set_version_weights("chat", {1: 95, 2: 5})
    await loop.reconcile_now()
    await until_model(state, lambda m: m.name == "chat" and m.reason.startswith("unreachable: "))
    shown = {(m.name, m.version): (m.weight, m.external_json) for m in state.snapshot().models}
    assert shown.keys() == {("m", 1), ("chat", 1), ("chat", 2)}
    assert shown["chat", 1] == (95.0, registry.external_version("chat", 1).canonical_json())
    assert {key[0] for key in loop.deployments.all()} == {"m"}
    assert [v.name for v in ViewReader(registry, RetryPolicy(), "").read([], ()).versions] == ["m"]
    registry.remove_external("chat", 1)
    await loop.reconcile_now()
    assert {(m.name, m.version) for m in state.models()} == {("m", 1), ("chat", 2)}


async def test_one_is_unloaded_and_loaded(
    registry: Registry, state: FleetState, loop: ReconcileLoop
) -> None:
    registry.add_external_version(CHAT)
    serving = Serving(registry, state, loop, is_placing=True)
    await serving.set_served("chat", is_served=False)
    (model,) = state.models()
    assert (model.state, model.reason, model.is_unloaded) == ("UNAVAILABLE", "unloaded", True)
    reply = await serving.set_served("chat", is_served=True)
    assert not reply.is_ready
    assert reply.reason.startswith("unreachable: ")
