"""Which build task comes first, and which may run side by side."""

from collections.abc import Sequence
from dataclasses import replace

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion
from services.controller.build.build_policy import decide, task_start
from services.controller.build.build_view import FleetView
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.build.build_views import (
    ANYWHERE,
    OTHER_DRIVER,
    POLICY,
    START,
    engines,
    tasks_of,
    view,
)
from tests.unit.services.controller.build.test_build_policy import OPENVINO, ORT


class TestWhoComesFirst:
    def test_one_task_at_a_time_on_a_class_and_the_urgent_one_first(self) -> None:
        second = world.version(
            name="n", master=world.MASTER.model_copy(update={"digest": "c" * 64})
        )
        other = world.key(EngineKind.OPENVINO, master_digest="c" * 64)
        seen = view(
            versions=(world.version(), second),
            plans={
                ("m", 1): (world.plan(),),
                ("n", 1): (world.plan((other,), model="n"),),
            },
            engines=engines(world.engine(ORT)),
        )
        (task,) = tasks_of(seen)
        assert task.model == "n", "it has nothing proven yet"
        start = task_start(task, seen, world.AT)
        assert tasks_of(view(**vars(seen) | {"running": [start]})) == []

    def test_as_many_tasks_run_on_a_class_as_its_nodes_take(self) -> None:
        pools = (replace(world.pool(), num_builds=2),)
        versions = [world.version(name=name) for name in "abc"]
        seen = view(pools=pools, versions=versions, plans={})
        decision = decide(seen, START, POLICY)
        assert [(task.model, task.is_first) for task in decision.tasks] == [
            ("a", True),
            ("b", True),
        ]
        assert [task.model for task in decision.queued] == ["c"]
        starts = [task_start(task, seen, world.AT) for task in decision.tasks]
        # One of a model alone runs on a generation: no engine is built twice.
        assert tasks_of(view(**vars(seen) | {"running": starts})) == []
        (task,) = tasks_of(view(**vars(seen) | {"running": starts[1:]}))
        assert task.model == "a"

    def test_what_nothing_serves_is_first_then_the_oldest(self) -> None:
        ages = {"new": "2026-03-01", "old": "2026-01-01", "served": "2025-01-01"}
        versions = [
            world.version(name=name, created_at=f"{at}T00:00:00Z") for name, at in ages.items()
        ]
        served = frozenset({("served", 1, world.GENERATION)})
        decision = decide(view(versions=versions, plans={}, served=served), START, POLICY)
        turns = [task.model for task in (*decision.tasks, *decision.queued)]
        assert turns == ["old", "new", "served"]

    def test_each_gets_its_first_engine_before_any_gets_its_second(self) -> None:
        """A new one without a plan, an older one that has one, and one that has an engine."""
        masters = {name: digest * 64 for name, digest in (("a", "1"), ("b", "2"), ("c", "3"))}
        keys = {
            name: tuple(
                world.key(kind, master_digest=master)
                for kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
            )
            for name, master in masters.items()
        }
        versions = [
            world.version(name=name, master=world.MASTER.model_copy(update={"digest": master}))
            for name, master in masters.items()
        ]
        plans = {(name, 1): (world.plan(keys[name], model=name),) for name in "bc"}
        seen = view(versions=versions, plans=plans, engines=engines(world.engine(keys["c"][0])))
        turns = decide(seen, START, POLICY)
        asked = [
            (task.model, task.is_first, task.key_digests) for task in (*turns.tasks, *turns.queued)
        ]
        assert asked == [
            ("a", True, ()),
            ("b", False, (keys["b"][0].digest(),)),
            ("c", False, (keys["c"][1].digest(),)),
        ]

    def test_one_that_lacks_engines_alone_gets_all_by_one_task(self) -> None:
        (task,) = tasks_of(view())
        assert task.key_digests == (ORT.digest(), OPENVINO.digest())
        (task,) = tasks_of(view(plans={}))
        assert not task.is_first

    def test_nothing_is_launched_for_nodes_as_they_were_before_their_source_was_lost(self) -> None:
        stale = replace(world.pool(), is_stale=True)
        decision = decide(view(pools=(stale,), plans={}), START, POLICY)
        assert (decision.tasks, decision.queued) == ((), ())

    def test_classes_of_one_generation_do_not_build_the_same_twice(self) -> None:
        twin = world.NODE_CLASS.model_copy(update={"device": "Other-Xeon"})
        pools = (world.pool(), world.pool(node_class=twin))
        assert len(tasks_of(view(pools=pools, plans={}))) == 1

    def test_classes_of_other_generations_build_side_by_side(self) -> None:
        pools = (world.pool(), world.pool(node_class=OTHER_DRIVER))
        assert len(tasks_of(view(pools=pools, plans={}))) == 2

    def test_where_no_node_is_one_task_at_a_time_builds_ahead(self) -> None:
        pools = (
            world.pool(0, ANYWHERE, "file"),
            world.pool(0, NodeClass(generation="cuda-sm89"), "file"),
        )
        (task,) = tasks_of(view(pools=pools, plans={}))
        assert (task.is_anywhere, task.node_class) == (True, ANYWHERE)


class TestWhatIsOvertaken:
    def new(self, name: str = "n") -> ModelVersion:
        return world.version(name=name, master=world.MASTER.model_copy(update={"digest": "c" * 64}))

    def building(self, *proven: BuildKey, versions: Sequence[ModelVersion] = ()) -> FleetView:
        """One task builds `m`, of which these engines are proven, and has the nodes."""
        seen = view(engines=engines(*map(world.engine, proven)))
        (task,) = tasks_of(seen)
        start = task_start(task, seen, world.AT)
        return view(**vars(seen) | {"running": [start], "versions": (world.version(), *versions)})

    def test_further_engines_give_way_to_a_model_that_has_none(self) -> None:
        seen = self.building(ORT, versions=[self.new()])
        decision = decide(seen, START, POLICY)
        assert decision.overtaken == tuple(seen.running)
        after = view(**vars(seen) | {"running": []})
        assert [task.model for task in tasks_of(after)] == ["n"]

    def test_first_engines_and_models_that_were_tried_before_do_not(self) -> None:
        assert decide(self.building(versions=[self.new()]), START, POLICY).overtaken == ()
        assert decide(self.building(ORT), START, POLICY).overtaken == ()
        other = world.key(EngineKind.OPENVINO, master_digest="c" * 64)
        plans = {("m", 1): (world.plan(),), ("n", 1): (world.plan((other,), model="n"),)}
        tried = self.building(ORT, versions=[self.new()])
        assert decide(view(**vars(tried) | {"plans": plans}), START, POLICY).overtaken == ()

    def test_each_new_model_takes_one_place_and_none_where_another_is_free(self) -> None:
        seen = self.building(ORT, versions=[self.new("n"), self.new("o")])
        assert len(decide(seen, START, POLICY).overtaken) == 1
        roomy = view(**vars(seen) | {"pools": (replace(world.pool(), num_builds=3),)})
        assert decide(roomy, START, POLICY).overtaken == ()
