"""Events of hardware and models: once each, also over restarts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.events import EventCheckpoint, EventKind, EventPosition
from services.contracts.model.recipe import Recipe
from services.contracts.registry.event_log import EventRegistry
from services.contracts.store.object_store import ObstoreArtifactStore
from services.controller.events.event_recorder import EventRecorder
from services.controller.events.event_state import EventState
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.events.observed import (
    OPENVINO,
    ORT,
    kinds,
    recorded,
    view,
)


class TestHardware:
    def test_one_whose_nodes_take_nothing_new_says_which_and_why(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        recorder.observe(view())
        away = replace(world.pool(0), num_known=1, names=("node-a (cordoned)",))
        recorder.observe(view(pools=(away,)))
        assert recorded(registry)[-1].kind is EventKind.GENERATION_GONE
        assert recorded(registry)[-1].why == "its nodes are unschedulable: node-a (cordoned)"

    def test_a_generation_comes_changes_and_goes(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        newer = world.NODE_CLASS.model_copy(update={"toolchain": "f" * 16})
        pools: Sequence[Any] = [
            (world.pool(),),
            (world.pool(), world.pool(node_class=newer)),
            (world.pool(node_class=newer),),
            (world.pool(0, newer),),
            (world.pool(),),
        ]
        for known in pools:
            recorder.observe(view(pools=known, versions=()))
            EventRecorder(registry).observe(view(pools=known, versions=()))
        assert kinds(registry) == [
            "generation_appeared",
            "toolchain_changed",
            "toolchain_changed",
            "generation_gone",
            "generation_appeared",
        ]
        first, second, third, *_ = recorded(registry)
        assert "Some-Xeon" in first.why
        assert "toolchain ffff" in second.why
        assert third.why == "nodes of another class are gone"


class TestModels:
    def test_a_new_master_is_a_model_a_new_recipe_is_not(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        other = world.MASTER.model_copy(update={"digest": "d" * 64})
        versions = [
            world.version(),
            world.version(version=2, recipe=Recipe(num_replicas=2)),
            world.version(version=3, master=other),
        ]
        for version in versions:
            recorder.observe(view(pools=(), versions=(version,)))
            EventRecorder(registry).observe(view(pools=(), versions=(version,)))
        assert kinds(registry) == ["model_published", "recipe_changed", "model_published"]

    def test_who_asked_for_a_rebuild_has_its_event(
        self, registry: EventRegistry, recorder: EventRecorder
    ) -> None:
        request = RebuildRequest(
            model="m", version=1, who="ann@host", why="new driver", created_at=world.AT
        )
        for _ in range(2):
            recorder.observe(view(requests={"m": [request]}, pools=()))
        event = recorded(registry)[-1]
        assert (event.kind, event.actor, event.why, event.mark) == (
            EventKind.REBUILD_REQUESTED,
            "ann@host",
            "new driver",
            "1",
        )
        assert len(recorded(registry)) == 2


def checkpoint_of_all(registry: EventRegistry) -> EventCheckpoint:
    """What the events amount to for one who reads them from the first."""
    state = EventState()
    for position, event in registry.events_after(EventPosition()):
        state.apply(event)
        state.position = position
    return state.checkpoint()


class TestRestart:
    def test_a_start_reads_the_newest_checkpoint_and_what_follows(
        self, registry: EventRegistry
    ) -> None:
        first = EventRecorder(registry, events_per_checkpoint=3)
        first.observe(view(world.engine(ORT), world.engine(OPENVINO)))
        checkpoint = registry.last_checkpoint()
        assert checkpoint.position.number in (3, 6)
        assert checkpoint.last["model m"].version == 1
        before = kinds(registry)
        second = EventRecorder(registry, events_per_checkpoint=1)
        second.observe(view(world.engine(ORT), world.engine(OPENVINO)))
        assert kinds(registry) == before
        second.observe(view(world.engine(ORT), world.engine(OPENVINO), pools=()))
        assert kinds(registry) == [*before, "generation_gone"]
        assert registry.last_checkpoint() == checkpoint_of_all(registry)

    def test_a_checkpoint_of_another_smelt_is_passed_over(
        self, registry: EventRegistry, store: ObstoreArtifactStore, recorder: EventRecorder
    ) -> None:
        recorder.observe(view())
        before = kinds(registry)
        store.create("event-checkpoints/000001.json", b'{"of": "another"}')
        restarted = EventRecorder(registry, events_per_checkpoint=1)
        restarted.observe(view())
        assert kinds(registry) == before
        restarted.observe(view(pools=()))
        assert kinds(registry) == [*before, "generation_gone"]
        assert registry.last_checkpoint() == checkpoint_of_all(registry)
