"""Engines, proofs and build records: order of publication, newest proof, prefixes."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import (
    AlreadyPublishedError,
    CorruptBlobError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
)
from services.contracts.model.manifest import (
    BlobRef,
    EngineManifest,
    Proof,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.registry.engines import engine_folder
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store


class LoggingStore(ObstoreArtifactStore):
    """Remembers what was written, in order."""

    def __init__(self, backend: MemoryStore) -> None:
        super().__init__(backend, "logging")
        self.written: list[str] = []

    def put_blob(self, source: Path) -> BlobRef:
        """Store and remember."""
        ref = super().put_blob(source)
        self.written.append("blob")
        return ref

    def create(self, key: str, data: bytes) -> None:
        """Create and remember the kind of document."""
        super().create(key, data)
        parts = key.split("/")
        self.written.append("/".join(part for part in parts if len(part) != 64))


@pytest.fixture
def store(backend: MemoryStore) -> LoggingStore:
    return LoggingStore(backend)


@pytest.fixture
def engine_file(tmp_path: Path) -> Path:
    (tmp_path / "plan").write_bytes(b"engine bytes")
    return tmp_path / "plan"


Publish = Callable[..., PublishedEngine]


@pytest.fixture
def publish(
    registry: Registry,
    engine_file: Path,
    make_key: Callable[..., BuildKey],
    make_manifest: Callable[..., EngineManifest],
    make_proof: Callable[..., Proof],
) -> Publish:
    """Publish an engine of one file, from changes to its key."""

    def run(**key_changes: Any) -> PublishedEngine:
        manifest = make_manifest(key=make_key(**key_changes))
        return registry.publish_engine(manifest, {"engine.plan": engine_file}, make_proof())

    return run


def test_files_come_first_and_the_manifest_last(publish: Publish, store: LoggingStore) -> None:
    publish()
    assert store.written == ["blob", "engines/proofs/000001.json", "engines/manifest.json"]


def test_an_engine_comes_back_whole(publish: Publish, registry: Registry) -> None:
    engine = publish()
    assert engine.digest == engine.manifest.key.digest()
    assert registry.engines() == [engine]
    assert engine.manifest.num_bytes == len(b"engine bytes")
    folder = registry.materialise_engine(engine)
    assert (folder / "engine.plan").read_bytes() == b"engine bytes"


def test_an_engine_without_files_has_an_empty_folder(
    registry: Registry,
    make_manifest: Callable[..., EngineManifest],
    make_proof: Callable[..., Proof],
) -> None:
    engine = registry.publish_engine(make_manifest(needs_master=True), {}, make_proof())
    assert list(registry.materialise_engine(engine).iterdir()) == []


def test_one_key_is_published_once(publish: Publish, registry: Registry, engine_file: Path) -> None:
    first = publish()
    engine_file.write_bytes(b"other bytes")
    with pytest.raises(AlreadyPublishedError, match=first.digest):
        publish()
    assert registry.engines() == [first]


def test_files_that_the_manifest_does_not_name_are_refused(
    registry: Registry,
    engine_file: Path,
    make_manifest: Callable[..., EngineManifest],
    make_proof: Callable[..., Proof],
) -> None:
    manifest = make_manifest(files={"engine.plan": BlobRef(sha256="0" * 64, num_bytes=1)})
    with pytest.raises(CorruptBlobError, match=manifest.key.digest()):
        registry.publish_engine(manifest, {"engine.plan": engine_file}, make_proof())
    assert registry.engines() == []


def test_the_newest_proof_counts(
    publish: Publish, registry: Registry, make_proof: Callable[..., Proof]
) -> None:
    engine = publish()
    for number in range(10):
        registry.add_proof(engine.digest, make_proof(reference=f"proof {number}"))
    failed = make_proof(outcome=ProofOutcome.FAILED, reason="NaN")
    assert registry.add_proof(engine.digest, failed).proof == failed
    assert registry.engine(engine.digest).proof == failed


def test_a_lost_answer_to_the_manifest_is_a_success(
    backend: MemoryStore,
    tmp_path: Path,
    make_manifest: Callable[..., EngineManifest],
    make_proof: Callable[..., Proof],
) -> None:
    class LostAnswerStore(ObstoreArtifactStore):
        """The client repeats a request whose answer was lost, and finds its own object."""

        def create(self, key: str, data: bytes) -> None:
            """Create, then refuse."""
            super().create(key, data)
            super().create(key, data)

    registry = Registry(LostAnswerStore(backend, "lost answers"), tmp_path / "cache")
    manifest = make_manifest()
    registry.publish_engine(manifest, {}, make_proof())
    assert [engine.manifest for engine in registry.engines()] == [manifest]


def test_provers_that_race_add_both_proofs(
    publish: Publish,
    registry: Registry,
    store: LoggingStore,
    backend: MemoryStore,
    tmp_path: Path,
    make_proof: Callable[..., Proof],
) -> None:
    engine = publish()
    first, second = make_proof(reference="first"), make_proof(reference="second")

    class OvertakenStore(ObstoreArtifactStore):
        """Another prover takes the number that this one is about to use."""

        is_overtaken = False

        def create(self, key: str, data: bytes) -> None:
            """Be overtaken once, then create."""
            if not self.is_overtaken:
                self.is_overtaken = True
                registry.add_proof(engine.digest, first)
            super().create(key, data)

    racing = Registry(OvertakenStore(backend, "overtaken"), tmp_path / "racing")
    assert racing.add_proof(engine.digest, second).proof == second
    proofs = [key[-11:] for key in store.list("engines/") if "/proofs/" in key]
    assert proofs == ["000001.json", "000002.json", "000003.json"]


def test_a_proof_needs_an_engine(registry: Registry, make_proof: Callable[..., Proof]) -> None:
    with pytest.raises(NotFoundError, match="0" * 64):
        registry.add_proof("0" * 64, make_proof())


def test_the_proof_of_a_lost_race_does_not_count_for_the_winner(
    store: LoggingStore,
    backend: MemoryStore,
    tmp_path: Path,
    engine_file: Path,
    make_manifest: Callable[..., EngineManifest],
    make_proof: Callable[..., Proof],
) -> None:
    """Two builders make other bytes for one key; the loser proved its own, later."""
    winner = Registry(store, tmp_path / "winner")
    other_file = tmp_path / "other"
    other_file.write_bytes(b"other bytes")
    not_run = make_proof(outcome=ProofOutcome.NOT_RUN, reason="no such device here")

    class PublishedMeanwhile(LoggingStore):
        """Lets the winner publish just before the loser's manifest."""

        def create(self, key: str, data: bytes) -> None:
            if key.endswith("manifest.json"):
                winner.publish_engine(make_manifest(), {"engine.plan": engine_file}, not_run)
            ObstoreArtifactStore.create(self, key, data)

    loser = Registry(PublishedMeanwhile(backend), tmp_path / "loser")
    with pytest.raises(AlreadyPublishedError):
        loser.publish_engine(make_manifest(), {"engine.plan": other_file}, make_proof())
    assert [engine.proof for engine in loser.engines()] == [not_run]


def test_engines_are_listed_by_master(publish: Publish, registry: Registry) -> None:
    first, second = publish(master_digest="a" * 64), publish(master_digest="b" * 64)
    assert registry.engines("a" * 64) == [first]
    assert registry.engines("c" * 64) == []
    by_digest = sorted((first, second), key=lambda engine: engine.digest)
    assert registry.engines() == by_digest


def test_an_engine_of_another_model_is_left_out(
    publish: Publish, registry: Registry, store: LoggingStore, caplog: pytest.LogCaptureFixture
) -> None:
    own = publish()
    foreign = publish(master_digest="e" * 64)
    folder = engine_folder(foreign.manifest.key)
    for key in store.list(folder):
        store.create(key.replace("e" * 64, own.manifest.key.master_digest), store.read(key))
    assert registry.engines(own.manifest.key.master_digest) == [own]
    assert f"is of master {'e' * 64}, wanted one of the master in its path" in caplog.text


def test_a_prefix_names_an_engine_when_it_names_only_one(
    publish: Publish, registry: Registry
) -> None:
    engines = [publish(driver=f"580.{number}") for number in range(17)]
    assert registry.engine(engines[0].digest) == engines[0]
    assert registry.engine(engines[0].digest[:12]) == engines[0]
    with pytest.raises(InvalidRequestError, match="ambiguous"):
        registry.engine("")
    with pytest.raises(NotFoundError, match="'xyz' not found among 17 engines"):
        registry.engine("xyz")


def test_an_engine_of_a_newer_version_is_left_out_with_a_warning(
    publish: Publish, registry: Registry, store: LoggingStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine = publish()
    key = f"engines/{'d' * 64}/{'f' * 64}/manifest.json"
    store.create(key, b'{"kind":"of another age"}')
    own = f"engines/{engine.manifest.key.master_digest}/{'e' * 64}/manifest.json"
    store.create(own, engine.manifest.canonical_json())
    assert registry.engines() == [engine]
    assert "f" * 64 in caplog.text
    assert "no proof below" in caplog.text
    with pytest.raises(StoreError, match="f" * 64):
        registry.engine("f" * 64)


def test_an_unreadable_document_is_named_with_its_fault(
    publish: Publish, registry: Registry, store: LoggingStore
) -> None:
    engine = publish()
    manifest_key = f"{engine_folder(engine.manifest.key)}manifest.json"
    proofs = [key for key in store.list("engines/") if "/proofs/" in key]
    store.create(proofs[0].replace("000001", "000002"), b'{"outcome":"passed","new_field":1}')
    with pytest.raises(StoreError, match=r"000002\.json.*is not a Proof.*created_at"):
        registry.engine(engine.digest)
    assert manifest_key in store.list("engines/")


def test_a_reader_beside_a_publisher_sees_only_whole_engines(
    tmp_path: Path,
    engine_file: Path,
    make_key: Callable[..., BuildKey],
    make_manifest: Callable[..., EngineManifest],
    make_proof: Callable[..., Proof],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = str(tmp_path / "store")
    manifests = [make_manifest(key=make_key(driver=str(number))) for number in range(40)]

    def publish() -> None:
        publisher = Registry(open_store(folder), tmp_path / "publisher")
        for manifest in manifests:
            publisher.publish_engine(manifest, {"engine.plan": engine_file}, make_proof())

    counts = [0]
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(publish)
        while not published.done():
            reader = Registry(open_store(folder), tmp_path / "reader")
            counts.append(len([reader.materialise_engine(each) for each in reader.engines()]))
        published.result()
    assert counts == sorted(counts)
    assert len(Registry(open_store(folder), tmp_path / "late").engines()) == 40
    assert caplog.records == []


def test_builds_are_kept_in_order(registry: Registry, make_key: Callable[..., BuildKey]) -> None:
    key = make_key()
    records = [
        BuildRecord(key=key, outcome=outcome, stage="build", started_at="2026-01-01T00:00:00Z")
        for outcome in (BuildOutcome.FAILED, BuildOutcome.FAILED, BuildOutcome.PROVEN)
    ]
    for record in records:
        registry.record_build(record)
    assert registry.build_records(key.digest()) == records
    assert registry.build_records("0" * 64) == []


def test_an_attempt_of_a_newer_compiler_counts(
    registry: Registry, store: ObstoreArtifactStore, make_key: Callable[..., BuildKey]
) -> None:
    record = BuildRecord(key=make_key(), outcome=BuildOutcome.FAILED, stage="build", started_at="")
    newer = json.loads(record.canonical_json()) | {"power_w": 250}
    store.create(f"builds/{record.key.digest()}/000001.json", json.dumps(newer).encode())
    assert registry.build_records(record.key.digest()) == [record]
