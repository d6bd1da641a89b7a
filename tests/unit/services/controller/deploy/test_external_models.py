"""The reconcile loop with external models: shown and checked, and never deployed or built."""

from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest

from services.contracts.errors import ExternalServerError, NotReadyError, SmeltError
from services.contracts.external.external_model import ExternalModel, Starter
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.api.model_loading import Serving
from services.controller.build.build_reader import ViewReader
from services.controller.build.key_status import RetryPolicy
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.external import external_watch
from services.controller.external.external_watch import ExternalWatch, WantedExternal
from tests.kubernetes_manifest import external_server
from tests.unit.services.controller.deploy.reconcile_world import (
    FakeFleet,
    add,
    loop_over,
    until_model,
)

APP = ExternalModel(name="app", version=1, url="ray+openai://a.b:c", remote_name="m")
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


class FakeApps:
    """Ray Serve, which says of any application what a test wants; one that runs is not there."""

    starter = Starter.RAY

    def __init__(self) -> None:
        self.applied: list[list[str]] = []
        self.fault: SmeltError | None = None

    def apply(self, models: Sequence[ExternalModel], kept: Collection[str] = ()) -> bool:
        self.applied.append([model.name for model in models] + [f"kept {name}" for name in kept])
        return bool(models)

    def find(self, model: ExternalModel) -> ExternalModel:
        if self.fault:
            raise self.fault
        return model.behind("127.0.0.1:9")


async def test_what_ray_serve_says_of_an_application_is_shown(
    state: FleetState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S", "LOADING_EVERY_S"):
        monkeypatch.setattr(external_watch, pause, 0.01)
    apps = FakeApps()
    apps.fault = NotReadyError("no GPU is free")
    watch = ExternalWatch(state, apps=apps, runs_apps=True)
    wanted = [WantedExternal(each, 0.0, False) for each in (APP, CHAT)]
    await watch.follow(wanted)
    await until_model(state, lambda m: (m.state, m.reason) == ("LOADING", "no GPU is free"))
    apps.fault = ExternalServerError("no module")
    await until_model(
        state, lambda m: (m.state, m.reason) == ("UNAVAILABLE", "not deployed: no module")
    )
    apps.fault = None
    await until_model(state, lambda m: m.name == "app" and m.reason.startswith("unreachable: "))
    await until_model(state, lambda m: b"http://127.0.0.1:9/external/app/1/v1" in m.external_json)
    await watch.follow([wanted[0]._replace(is_unloaded=True), wanted[1]])
    # Of the last look nothing was left, so that Serve is asked no more.
    await watch.follow(wanted[1:])
    assert apps.applied == [["app"], []]
    await watch.close()


async def test_a_fleet_that_runs_no_applications_says_so_and_ends_those_that_run(
    state: FleetState,
) -> None:
    apps = FakeApps()
    watch = ExternalWatch(state, apps=apps)
    for _ in range(2):
        await watch.follow([WantedExternal(APP, 0.0, False)])
    await until_model(state, lambda m: m.reason.startswith("not deployed: this fleet runs no appl"))
    assert apps.applied == [[]]
    await watch.close()


async def test_what_another_platform_runs_is_refused_and_not_applied(state: FleetState) -> None:
    apps = FakeApps()
    watch = ExternalWatch(state, apps=apps, runs_apps=True)
    server = external_server(name="server")
    await watch.follow([WantedExternal(each, 0.0, False) for each in (APP, server)])
    await until_model(
        state,
        lambda m: m.reason.startswith(
            "not deployed: this fleet runs no Deployments of models; wan"
        ),
    )
    assert apps.applied == [["app"]]
    await watch.close()


async def test_applications_of_a_name_that_cannot_be_read_stay(
    registry: Registry, state: FleetState, tmp_path: Path
) -> None:
    """Also of a controller that has just started, and knows none of them."""
    apps = FakeApps()
    registry.add_external_version(APP)
    registry.set_version_weights("app", {1: 1})
    (weights,) = (tmp_path / "store" / "weights" / "app").iterdir()
    weights.with_name("000002.json").write_text("{")
    loop = loop_over(registry, state, FakeFleet())
    loop.externals = ExternalWatch(state, apps=apps, runs_apps=True)
    await loop.reconcile_now()
    assert apps.applied == [["kept app"]]
    await loop.externals.close()


async def test_one_that_cannot_be_read_is_left_as_it_is(
    registry: Registry, state: FleetState, loop: ReconcileLoop, tmp_path: Path
) -> None:
    registry.add_external_version(APP)
    registry.set_version_weights("app", {1: 1})
    await loop.reconcile_now()
    (weights,) = (tmp_path / "store" / "weights" / "app").iterdir()
    weights.with_name("000002.json").write_text("{")
    await loop.reconcile_now()
    assert [model.name for model in state.models()] == ["app"]


async def test_what_cannot_be_ended_is_shown_until_it_is(
    registry: Registry, state: FleetState, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = FakeApps()

    def refuse(models: Sequence[ExternalModel], kept: Collection[str] = ()) -> bool:
        raise NotReadyError("Service chat-1 is not deleted: forbidden")

    loop = loop_over(registry, state, FakeFleet())
    loop.externals = ExternalWatch(state, apps=apps, runs_apps=True)
    with monkeypatch.context() as patched:
        patched.setattr(apps, "apply", refuse)
        await loop.reconcile_now()
    # The models are known all the same.
    assert await state.looked() == ""
    assert state.snapshot().fault == (
        "servers of external models: Service chat-1 is not deleted: forbidden"
    )
    await loop.reconcile_now()
    assert state.snapshot().fault == ""
    await loop.externals.close()
