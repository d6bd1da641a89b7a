"""How often a store is listed: once for each folder and look, however many models it has."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from services.contracts.model.manifest import BlobRef, MasterRecord, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.history import BuildHistory
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.contracts.text.moments import utc_now
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop
from services.controller.build.build_reader import ViewReader
from services.controller.build.key_status import RetryPolicy
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.metrics.build_metrics import BuildMetrics
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.checker import EngineChecker
from services.replica.engine.loaded_engine import RunningEngine
from services.replica.engine.manager import EngineManager
from services.telemetry.recorder import NullRecorder
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.controller.build_world import (
    DEVICE,
    GENERATION,
    InstantWorker,
    plan,
    pool,
    record,
)
from tests.unit.services.controller.deploy.reconcile_world import FakeFleet, Nodes


class World:
    """A store with models, each with engines and a plan, and the three readers of a controller.

    Attributes:
        asked: how often anything was listed, and how many documents were read, by folder.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self.asked = folder, Counter[str]()
        self.store = open_store(str(folder / "store"))
        self.registry = Registry(self.store, folder / "cache")
        self.state = FleetState("store")
        nodes = Nodes(GENERATION)
        self.deploying = ReconcileLoop(
            self.registry, nodes, self.state, FakeFleet(), {}, resync_s=60
        )
        worker = InstantWorker(self.registry)
        self.building = BuildLoop(self.registry, nodes, worker, self.state)
        self._metrics = BuildMetrics(
            NullRecorder(), BuildHistory(self.store, max_at_start=0), lambda: self.building.latest
        )
        plain_list, plain_read = ObstoreArtifactStore.list, ObstoreArtifactStore.read

        def counted_list(store: ObstoreArtifactStore, prefix: str) -> list[str]:
            self.asked["lists"] += 1
            return plain_list(store, prefix)

        def counted_read(store: ObstoreArtifactStore, key: str) -> bytes:
            self.asked[key.partition("/")[0]] += 1
            return plain_read(store, key)

        monkeypatch.setattr(ObstoreArtifactStore, "list", counted_list)
        monkeypatch.setattr(ObstoreArtifactStore, "read", counted_read)

    def add(self, name: str, num_engines: int = 3) -> str:
        """Publish a model with engines and a plan; returns its master's digest."""
        master = MasterRecord(
            digest=f"master-of-{name}",
            files={"model.onnx": BlobRef(sha256="0" * 64, num_bytes=1)},
            inputs=(),
            outputs=(),
            opset=23,
            num_parameters=0,
        )
        self.registry.add_model_version(
            name=name, master=master, recipe=Recipe(), source="s", source_fingerprint=name
        )
        keys = [
            small_key(master_digest=master.digest, builder_options={"n": str(number)})
            for number in range(num_engines)
        ]
        self.registry.write_plan(plan(tuple(keys), model=name))
        for key in keys:
            proof = small_proof(ProofOutcome.PASSED)
            proven = proof.model_copy(update={"device": DEVICE})
            self.registry.publish_engine(small_manifest(key), {}, proven)
        return master.digest

    async def look(self) -> Counter[str]:
        """One look of each reader; returns what it asked of the store."""
        self.asked.clear()
        await self.deploying.reconcile()
        await self.building.sync()
        self._metrics.look()
        return Counter(self.asked)

    def replica(self, model: str) -> EngineManager:
        """A replica's engines, with a store and documents of its own."""

        def no_fallback(_: object) -> RunningEngine:
            raise AssertionError("nothing is loaded here")

        registry = Registry(self.store, self._folder / "replica")
        checker = EngineChecker(self._folder / "checked")
        return EngineManager(registry, registry.model_version(model), DEVICE, no_fallback, checker)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


async def test_a_look_lists_as_often_whatever_the_number_of_models(world: World) -> None:
    lists = []
    for names in ("a",), ("b", "c", "d", "e", "f"):
        for name in names:
            world.add(name)
        await world.look()
        again = await world.look()
        lists.append(again["lists"])
        assert not again["engines"] + again["models"] + again["plans"], "they were read before"
    assert lists[0] == lists[1]
    assert lists[1] <= 20


async def test_a_replica_lists_nothing_for_an_announcement(world: World) -> None:
    digest = world.add("a")
    await world.look()
    replica = world.state.attach(fleet.ReplicaReport(model_name="a", model_version=1))
    host = world.replica("a")
    engine = world.registry.engines(digest)[0]
    newer = engine.proof.model_copy(update={"outcome": ProofOutcome.FAILED, "created_at": "later"})
    world.registry.add_proof(engine.digest, newer)
    await world.look()
    announced = [replica.commands.get_nowait() for _ in range(replica.commands.qsize())]
    host.announce([c for c in announced if c][-1].engines_changed.document_keys)
    world.asked.clear()
    choice = host.choose("")
    assert world.asked["lists"] == 0
    assert choice.offer.engines == world.registry.engines(digest)


async def test_what_is_published_during_a_look_is_seen_by_the_next(world: World) -> None:
    world.add("a")
    moment = world.registry.at_one_moment()
    assert moment.model_names() == ["a"]
    world.add("b")
    assert moment.model_names() == ["a"]
    assert world.registry.at_one_moment().model_names() == ["a", "b"]


async def test_a_retry_waits_by_the_controllers_clock_not_by_the_builders(world: World) -> None:
    """A builder whose clock is a day ahead must not have its failure tried again in a day."""
    world.add("a", num_engines=0)
    key = small_key(master_digest="master-of-a")
    world.registry.write_plan(plan((key,), model="a", created_at="2026-02-01T00:00:00.000+00:00"))
    reader = ViewReader(world.registry, RetryPolicy(), "")
    reader.read([pool()], [])
    tomorrow = (utc_now() + timedelta(days=1)).isoformat()
    world.registry.record_build(record(key, started_at=tomorrow))
    view = reader.read([pool()], [])
    (status,) = view.statuses(view.versions[0], view.plans["a", 1][0], RetryPolicy())
    assert status.next_attempt_at
    assert status.next_attempt_at < utc_now() + timedelta(hours=1)
