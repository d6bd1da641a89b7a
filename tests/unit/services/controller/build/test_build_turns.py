"""What waits for its turn, behind what, as a fleet tells it."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop
from services.controller.build.build_policy import decide, task_start
from services.controller.build.build_view import FleetView
from tests.unit.services.controller import build_world as world

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ELSEWHERE = NodeClass(generation="cuda-sm90", device="H200", memory_gib=139, driver="580.1")


class Nodes:
    def pools(self) -> list[Any]:
        return [world.pool()]


def named(name: str) -> ModelVersion:
    return world.version(name=name)


def test_others_wait_behind_the_one_that_runs_and_it_not_behind_itself() -> None:
    versions = tuple(map(named, "abc"))
    first = decide(FleetView(pools=(world.pool(),), versions=versions), NOW)
    assert [task.model for task in first.tasks] == ["a"]
    assert [task.model for task in first.queued] == ["b", "c"]
    start = task_start(first.tasks[0], FleetView(), world.AT)
    seen = FleetView(
        pools=(world.pool(), world.pool(node_class=ELSEWHERE)), versions=versions, running=[start]
    )
    then = decide(seen, NOW)
    assert [(task.model, task.node_class) for task in then.tasks] == [("a", ELSEWHERE)]
    waiting = [(task.model, task.node_class.generation) for task in then.queued]
    assert waiting == [
        ("b", world.GENERATION),
        ("c", world.GENERATION),
        ("b", "cuda-sm90"),
        ("c", "cuda-sm90"),
    ]


def test_a_fleet_tells_those_that_run_first_and_gateways_hear_of_changes_alone(
    tmp_path: Path,
) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    for name in "ab":
        registry.add_model_version(
            name=name, master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
        )
    state = FleetState("", 0)
    worker = world.InstantWorker(registry, world.plan())
    loop = BuildLoop(registry, Nodes(), worker, state)

    async def passes() -> list[int]:
        revisions = []
        for _ in range(2):
            await loop.sync()
            revisions.append(state.revision)
        return revisions

    before = state.revision
    assert asyncio.run(passes()) == [before + 1] * 2
    running, waiting = state.snapshot().builds
    assert (running.model_name, running.started_at != "") == ("a", True)
    assert (waiting.model_name, waiting.started_at) == ("b", "")
    assert (running.queued_at, waiting.queued_at != "") == ("", True)
    assert waiting.reason == "first build for these nodes"
    assert running.node_class == waiting.node_class == world.NODE_CLASS.digest()
