"""Masters and model versions: numbering, repeats, races, what is not found."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from services.contracts.errors import (
    AlreadyPublishedError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.local_master import LocalMaster
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.object_store import ObstoreArtifactStore


@pytest.fixture
def opened(tmp_path: Path) -> LocalMaster:
    (tmp_path / "graph").write_bytes(b"graph")
    (tmp_path / "weights").write_bytes(b"weights" * 1000)
    return LocalMaster(
        digest="d" * 64,
        files={"model.onnx": tmp_path / "graph", "w.data": tmp_path / "weights"},
        inputs=(TensorSpec(name="x", datatype="FP32", shape=("batch",)),),
        outputs=(),
        opset=23,
        num_parameters=7,
    )


@pytest.fixture
def master(registry: Registry, opened: LocalMaster) -> MasterRecord:
    return registry.publish_master(opened)


def add(
    registry: Registry,
    master: MasterRecord,
    fingerprint: str = "f1",
    name: str = "mini",
    samples: Path | None = None,
) -> ModelVersion:
    return registry.add_model_version(
        name=name,
        master=master,
        recipe=Recipe(),
        source="file.onnx",
        source_fingerprint=fingerprint,
        samples=samples,
    )


def test_a_master_comes_back_with_its_files(
    registry: Registry, master: MasterRecord, opened: LocalMaster
) -> None:
    assert (master.opset, master.num_parameters, master.inputs) == (23, 7, opened.inputs)
    folder = registry.materialise_master(master)
    assert (folder / "model.onnx").read_bytes() == b"graph"
    assert (folder / "w.data").read_bytes() == b"weights" * 1000


def test_a_master_published_again_stays_as_it_was(
    registry: Registry, master: MasterRecord, opened: LocalMaster, tmp_path: Path
) -> None:
    (tmp_path / "graph2").write_bytes(b"the same graph, serialised in another way")
    again = replace(opened, files={"model.onnx": tmp_path / "graph2"})
    assert registry.publish_master(again) == master


def test_one_digest_with_two_interfaces_is_refused(
    registry: Registry, master: MasterRecord, opened: LocalMaster
) -> None:
    with pytest.raises(AlreadyPublishedError, match="d" * 64):
        registry.publish_master(replace(opened, opset=20))


def test_files_cannot_be_named_outside_their_folder(
    registry: Registry, opened: LocalMaster, tmp_path: Path, master: MasterRecord
) -> None:
    evil = {"../evil": tmp_path / "graph"}
    with pytest.raises(StoreError, match="evil"):
        registry.publish_master(replace(opened, digest="e" * 64, files=evil))
    record = master.model_copy(update={"files": {"../evil": master.files["model.onnx"]}})
    with pytest.raises(StoreError, match="evil"):
        registry.materialise_master(record)


def test_versions_count_from_one(registry: Registry, master: MasterRecord) -> None:
    versions = [add(registry, master, fingerprint) for fingerprint in ("f1", "f2", "f1")]
    assert [version.version for version in versions] == [1, 2, 3]
    assert registry.versions("mini") == versions
    assert registry.model_version("mini") == versions[-1]
    assert registry.model_version("mini", 2) == versions[1]


def test_repeating_the_latest_version_adds_none(registry: Registry, master: MasterRecord) -> None:
    first = add(registry, master)
    assert add(registry, master) == first
    assert len(registry.versions("mini")) == 1


def test_what_was_found_of_a_fallback_is_kept_and_makes_no_version_by_itself(
    registry: Registry, master: MasterRecord, tmp_path: Path
) -> None:
    (tmp_path / "answers").write_bytes(b"answers")
    verdict = FallbackVerdict(refuted="output 'y': far off", code="c", num_samples=3)
    first = registry.add_model_version(
        name="mini",
        master=master,
        recipe=Recipe(),
        source="file.onnx",
        source_fingerprint="f1",
        fallback_verdict=verdict,
        fallback_answers=tmp_path / "answers",
    )
    (found,) = registry.versions("mini")
    assert (found, found.fallback_verdict) == (first, verdict)
    assert found.fallback_answers is not None
    kept = registry.materialise_samples(found.fallback_answers)
    assert kept.read_bytes() == b"answers"
    assert add(registry, master) == first


def test_a_version_of_before_fallbacks_were_judged_keeps_its_bytes(
    registry: Registry, master: MasterRecord
) -> None:
    version = add(registry, master)
    text = version.canonical_json()
    assert b"fallback" not in text.replace(b"must_beat_fallback", b"")
    assert ModelVersion.from_json(text) == version
    assert (version.fallback_verdict, version.fallback_answers) == (None, None)


def test_a_new_recipe_is_a_new_version(registry: Registry, master: MasterRecord) -> None:
    first = add(registry, master)
    second = registry.add_model_version(
        name="mini",
        master=master,
        recipe=Recipe(num_replicas=2),
        source=first.source,
        source_fingerprint=first.source_fingerprint,
    )
    assert second.version == 2


def test_a_new_master_of_the_same_source_is_a_new_version(
    registry: Registry, master: MasterRecord, opened: LocalMaster
) -> None:
    add(registry, master)
    exported_again = registry.publish_master(replace(opened, digest="e" * 64))
    assert add(registry, exported_again).version == 2


def test_the_tenth_version_comes_after_the_ninth(registry: Registry, master: MasterRecord) -> None:
    for number in range(11):
        add(registry, master, f"f{number}")
    assert [version.version for version in registry.versions("mini")] == list(range(1, 12))


NUM_AT_ONCE = 8


@pytest.fixture
def at_once(store: ObstoreArtifactStore, tmp_path: Path) -> Callable[..., list[int]]:
    """Publishes from several clients at once; returns the versions they got."""
    start = threading.Barrier(NUM_AT_ONCE)

    def publish(master: MasterRecord, number: int, source: str) -> int:
        registry = Registry(store, tmp_path / f"cache{number}")
        start.wait(timeout=60)
        return add(registry, master, source).version

    def publish_all(master: MasterRecord, sources: Sequence[str]) -> list[int]:
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            jobs = [pool.submit(publish, master, *numbered) for numbered in enumerate(sources)]
            return sorted(job.result() for job in jobs)

    return publish_all


def test_concurrent_publishers_get_numbers_of_their_own(
    at_once: Callable[..., list[int]], master: MasterRecord
) -> None:
    sources = [f"f{number}" for number in range(NUM_AT_ONCE)]
    assert at_once(master, sources) == list(range(1, NUM_AT_ONCE + 1))


def test_concurrent_publishers_of_one_source_make_one_version(
    at_once: Callable[..., list[int]], master: MasterRecord
) -> None:
    assert set(at_once(master, ["f"] * NUM_AT_ONCE)) == {1}


class LostAnswerStore(ObstoreArtifactStore):
    """A create succeeds, its answer is lost, and the client's repeat finds the object there."""

    def create(self, key: str, data: bytes) -> None:
        """Create, then refuse."""
        super().create(key, data)
        super().create(key, data)


def test_a_lost_answer_is_no_second_publisher(
    backend: MemoryStore, tmp_path: Path, opened: LocalMaster
) -> None:
    registry = Registry(LostAnswerStore(backend, "lost answers"), tmp_path / "cache")
    master = registry.publish_master(opened)
    assert add(registry, master).version == 1
    assert [version.version for version in registry.versions("mini")] == [1]


def test_the_record_of_a_faster_publisher_counts(
    store: ObstoreArtifactStore, backend: MemoryStore, tmp_path: Path, opened: LocalMaster
) -> None:
    (tmp_path / "other").write_bytes(b"the same graph, serialised in another way")
    theirs = replace(opened, files={"model.onnx": tmp_path / "other"})

    class OvertakenStore(ObstoreArtifactStore):
        """Another publisher creates the same master first."""

        def create(self, key: str, data: bytes) -> None:
            """Be overtaken, then create."""
            Registry(store, tmp_path / "theirs").publish_master(theirs)
            super().create(key, data)

    ours = Registry(OvertakenStore(backend, "overtaken"), tmp_path / "ours")
    master = ours.publish_master(opened)
    assert list(master.files) == ["model.onnx"]
    assert ours.publish_master(opened) == master


def test_samples_come_back(registry: Registry, master: MasterRecord, tmp_path: Path) -> None:
    (tmp_path / "samples").write_bytes(b"npz")
    version = add(registry, master, samples=tmp_path / "samples")
    assert version.samples is not None
    path = registry.materialise_samples(version.samples)
    assert path.suffix == ".npz"
    assert path.read_bytes() == b"npz"
    assert registry.materialise_samples(version.samples) == path


def test_other_samples_make_another_version(
    registry: Registry, master: MasterRecord, tmp_path: Path
) -> None:
    versions = []
    for text in (b"one", b"one", b"other"):
        (tmp_path / "samples").write_bytes(text)
        version = add(registry, master, samples=tmp_path / "samples")
        versions.append(version.version)
    assert versions == [1, 1, 2]


def test_what_is_not_found_says_what_there_is(registry: Registry, master: MasterRecord) -> None:
    with pytest.raises(NotFoundError, match="'mini' not found; there are: none"):
        registry.model_version("mini")
    add(registry, master)
    add(registry, master, "f2")
    with pytest.raises(NotFoundError, match="'other' not found; there are: mini"):
        registry.model_version("other")
    with pytest.raises(
        NotFoundError, match="'miny' not found, did you mean 'mini'.; there are: mini"
    ):
        registry.model_version("miny")
    with pytest.raises(NotFoundError, match="'mini' has no version 3; there are: 1, 2"):
        registry.model_version("mini", 3)


@pytest.mark.parametrize("name", ["", "Mini", "-mini", ".mini", "a/b", "ä", "a b", "a" * 101])
def test_a_name_that_cannot_be_a_key_is_refused(
    registry: Registry, master: MasterRecord, name: str
) -> None:
    with pytest.raises(InvalidRequestError, match="model name"):
        add(registry, master, name=name)
    with pytest.raises(InvalidRequestError, match="model name"):
        registry.versions(name)
    assert registry.model_names() == []


@pytest.mark.parametrize("name", ["a", "0", "all-minilm_l6.v2", "a" * 100])
def test_a_name_of_allowed_characters_is_listed(
    registry: Registry, master: MasterRecord, name: str
) -> None:
    add(registry, master, name=name)
    assert registry.model_names() == [name]
