"""What a store loses, on each kind of store: nothing that serves, is planned, named or young."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.builds.build_plan import BuildPlan, PlannedKey, TaskStart
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import StoreError
from services.contracts.events import Event, EventCheckpoint, EventKind, EventPosition
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import MasterRecord, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import SAFE_AGE, ObstoreArtifactStore, open_store
from services.contracts.store.prune import InUse, PrunePlan, plan_prune, prune
from tests.documents import AT, small_key, small_manifest, small_proof
from tests.s3 import empty_s3_store, s3_server

GENERATION = "cpu-x86_64-v3"
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty store."""
    if request.param == "local":
        return str(tmp_path / "store")
    return empty_s3_store(request.getfixturevalue("s3_endpoint"), monkeypatch)


class World:
    """A store with versions of models, each with a plan and engines."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self.store: ObstoreArtifactStore = open_store(url)
        self.registry = Registry(self.store, folder / "cache")

    def master(self, name: str) -> MasterRecord:
        """A master with weights of its own, published."""
        path = self._folder / name
        path.write_text(f"weights of {name}")
        record = MasterRecord(
            digest=f"master-{name}",
            files={"model.onnx": self.store.put_blob(path)},
            inputs=(),
            outputs=(),
            opset=23,
            num_parameters=0,
        )
        self.store.create(f"masters/{record.digest}.json", record.canonical_json())
        return record

    def add(self, model: str, master: MasterRecord) -> int:
        """Publish a version; returns its number."""
        return self.registry.add_model_version(
            name=model, master=master, recipe=Recipe(), source="s", source_fingerprint=model
        ).version

    def engine(self, master: MasterRecord, toolchain: str, content: str = "") -> str:
        """Publish an engine with a record; returns its digest."""
        key = small_key(master_digest=master.digest, toolchain={"t": toolchain})
        path = self._folder / "engine"
        path.write_text(content or f"engine {key.digest()}")
        proof = small_proof(ProofOutcome.PASSED)
        self.registry.publish_engine(small_manifest(key), {"plan": path}, proof)
        self.registry.record_build(
            BuildRecord(key=key, outcome=BuildOutcome.PROVEN, stage="prove", started_at=AT)
        )
        return key.digest()

    def plan(self, model: str, version: int, master: MasterRecord, toolchain: str) -> NodeClass:
        """Plan the engine of a toolchain for a node that has it."""
        facts = DeviceFacts(
            generation=GENERATION, name="Xeon", memory_gib=1, toolchain={"t": toolchain}
        )
        key = small_key(master_digest=master.digest, toolchain={"t": toolchain})
        node_class = NodeClass.from_facts(facts)
        self.registry.write_plan(
            BuildPlan(
                model=model,
                version=version,
                node_class=node_class,
                facts=facts,
                planned=(PlannedKey(key=key),),
                created_at=AT,
            )
        )
        return node_class

    def look(self, in_use: InUse | None = None, before: datetime = LATER) -> PrunePlan:
        """What may go."""
        return plan_prune(self.store, self.registry.at_one_moment(), before, in_use or InUse())

    def prune(self, in_use: InUse | None = None) -> None:
        """Have it go."""
        prune(self.store, self.look(in_use))

    def digests(self) -> set[str]:
        """Of the engines that are left, each with its files."""
        found = self.registry.engines()
        for engine in found:
            assert (self.registry.materialise_engine(engine) / "plan").exists()
        return {engine.digest for engine in found}


@pytest.fixture
def world(url: str, tmp_path: Path) -> World:
    return World(url, tmp_path)


def test_a_removed_version_goes_with_all_that_only_it_needed(world: World) -> None:
    kept, gone = world.master("kept"), world.master("gone")
    for model, master in (("stays", kept), ("goes", gone)):
        version = world.add(model, master)
        world.plan(model, version, master, "1")
    kept_engine = world.engine(kept, "1")
    world.engine(gone, "1")
    task = TaskStart(
        name="task-1",
        model="goes",
        version=1,
        node_class=NodeClass(generation=GENERATION),
        is_anywhere=False,
        created_at=AT,
    )
    world.registry.start_task(task)
    assert world.look().objects == {}
    world.registry.remove_model("goes")
    plan = world.look()
    assert {what: len(objects) for what, objects in plan.objects.items()} == {
        "engines": 2,
        "masters": 1,
        "plans": 1,
        "builds": 1,
        "tasks": 1,
        "blobs": 2,
    }
    before = world.store.list("models/")
    prune(world.store, plan)
    assert world.look().objects == {}
    assert world.digests() == {kept_engine}
    assert world.store.list("masters/") == ["masters/master-kept.json"]
    # A number is never given again, so its document stays.
    assert world.store.list("models/") == before
    assert world.add("goes", gone) == 2


def test_what_serves_is_planned_or_of_another_generation_stays(world: World) -> None:
    master = world.master("m")
    version = world.add("m", master)
    engines = {name: world.engine(master, name) for name in ("old", "serving", "new", "loose")}
    world.plan("m", version, master, "old")
    present = world.plan("m", version, master, "new")
    in_use = InUse(
        serving={engines["serving"]}, node_classes={GENERATION: (present.digest()[:12],)}
    )
    # Of nodes that say nothing of themselves, or of which none is there, all plans count.
    for nobody_knows in ({}, {GENERATION: ("0" * 12,)}, {"cuda-sm90": ("0" * 12,)}):
        known = InUse(serving=in_use.serving, node_classes=nobody_knows)
        gone = {each.key.split("/")[2] for each in world.look(known).objects["engines"]}
        assert gone == {engines["loose"]}
    world.prune(in_use)
    assert world.digests() == {engines["serving"], engines["new"]}


def test_engines_that_nobody_planned_stay_while_their_version_does(world: World) -> None:
    """Those of `smelt build`, in a store that no controller has seen."""
    master = world.master("m")
    world.add("m", master)
    engine = world.engine(master, "1")
    world.prune()
    assert world.digests() == {engine}


def test_a_blob_of_several_manifests_stays_with_the_last(world: World) -> None:
    masters = [world.master(name) for name in "ab"]
    versions = [world.add(f"m{n}", master) for n, master in enumerate(masters)]
    for n, master in enumerate(masters):
        world.plan(f"m{n}", versions[n], master, "1")
        world.engine(master, "1", content="the same bytes")
    world.registry.remove_model("m0")
    world.prune()
    assert len(world.digests()) == 1
    world.registry.remove_model("m1")
    world.prune()
    assert world.store.list("blobs/") == []


def test_nothing_young_goes(world: World) -> None:
    master = world.master("m")
    world.add("m", master)
    world.engine(master, "1")
    world.registry.remove_model("m")
    assert world.look(before=datetime.now(UTC) - timedelta(hours=1)).objects == {}


def test_events_go_by_whole_days_that_no_controller_reads_any_more(world: World) -> None:
    days = ("2026-01-01", "2026-01-02", "2026-01-03")
    position = EventPosition()
    for day in days:
        event = Event(at=f"{day}T00:00:00.000+00:00", kind=EventKind.GENERATION_GONE)
        position = world.registry.append_event(event, position) or position
    assert "events" not in world.look().objects
    world.prune(InUse(event_day=days[1]))
    assert [event.at[:10] for _, event in world.registry.last_events(10)] == list(days[1:])


def test_a_document_of_a_newer_release_keeps_everything(world: World) -> None:
    world.store.create("models/m/versions/000001.json", b'{"from":"a newer release"}')
    with pytest.raises(StoreError, match="ModelVersion"):
        world.look()


def test_an_old_blob_that_is_published_again_is_young_again(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So that it is not pruned between being found and being named."""
    path = tmp_path / "again"
    path.write_text("bytes")
    world.store.put_blob(path)
    (first,) = world.store.objects("blobs/")
    world.store.put_blob(path)
    assert world.store.objects("blobs/") == (first,)
    monkeypatch.setattr("services.contracts.store.object_store.SAFE_AGE", -SAFE_AGE)
    world.store.put_blob(path)
    (again,) = world.store.objects("blobs/")
    assert again.modified_at >= first.modified_at
    assert again.key == first.key


def test_a_blob_that_is_put_again_after_it_was_listed_stays(world: World, tmp_path: Path) -> None:
    path = tmp_path / "again"
    path.write_text("bytes")
    world.store.put_blob(path)
    (now,) = world.store.objects("blobs/")
    listed = now._replace(modified_at=now.modified_at - timedelta(days=1))
    for blob, left in ((listed, [now.key]), (now, [])):
        prune(world.store, PrunePlan({"blobs": (blob,)}))
        assert world.store.list("blobs/") == left


def test_the_command_shows_first_and_deletes_only_when_told_to(
    world: World, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    world.add("m", world.master("m"))
    world.registry.remove_model("m")
    # The next controller starts with a checkpoint, and reads the events after it.
    days, position = ("2026-01-01", "2026-01-02", "2026-01-03"), EventPosition()
    for day in days:
        event = Event(at=f"{day}T00:00:00.000+00:00", kind=EventKind.GENERATION_GONE)
        position = world.registry.append_event(event, position) or position
        if day == days[1]:
            world.registry.keep_checkpoint(EventCheckpoint(position=position))
    plain = plan_prune

    def as_if_old(*args: object) -> PrunePlan:
        store, registry, _, in_use = args
        return plain(store, registry, LATER, in_use)  # type: ignore[arg-type]

    monkeypatch.setattr("services.cli.builds.prune.plan_prune", as_if_old)
    before = world.store.list("masters/")
    shown = CliRunner().invoke(app, ["prune", "--store", url])
    assert shown.exit_code == 0, shown.output
    assert "Nothing was deleted" in shown.output
    assert world.store.list("masters/") == before != []
    done = json.loads(CliRunner().invoke(app, ["prune", "--store", url, "--yes", "--json"]).output)
    assert done["is_deleted"]
    assert done["unused"]["masters"]["keys"] == before
    assert world.store.list("masters/") == []
    assert [event.at[:10] for _, event in world.registry.last_events(10)] == list(days[1:])
