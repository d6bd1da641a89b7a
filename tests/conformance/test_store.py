"""What every artifact store must do: one suite, one row per backend."""

import hashlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.contracts.errors import AlreadyPublishedError, CorruptBlobError, NotFoundError
from services.contracts.model.manifest import BlobRef, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.artifact_store import ArtifactStore, objects_now
from services.contracts.store.object_store import open_store, verify_conditional_create
from tests.documents import small_key, small_manifest, small_proof
from tests.s3 import empty_s3_store, s3_server

BACKENDS = ("local", "file_url", "memory", "s3")
MULTIPART_BYTES = 20 * 2**20 + 7  # three parts, the last one short


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty store."""
    if request.param != "s3":
        folder = tmp_path / "a store"
        return {"local": str(folder), "file_url": folder.as_uri(), "memory": "memory:"}[
            request.param
        ]
    return empty_s3_store(request.getfixturevalue("s3_endpoint"), monkeypatch)


@pytest.fixture
def store(url: str) -> ArtifactStore:
    return open_store(url)


def blob_file(folder: Path, data: bytes) -> Path:
    path = folder / f"source-{uuid.uuid4().hex}"
    path.write_bytes(data)
    return path


def test_an_object_reads_back(store: ArtifactStore) -> None:
    store.create("models/m/1.json", b'{"a":1}')
    assert store.read("models/m/1.json") == b'{"a":1}'


def test_a_second_create_is_refused_and_changes_nothing(store: ArtifactStore) -> None:
    store.create("models/m/1.json", b"first")
    with pytest.raises(AlreadyPublishedError, match=r"models/m/1\.json"):
        store.create("models/m/1.json", b"second")
    assert store.read("models/m/1.json") == b"first"


def test_of_racing_creators_exactly_one_wins(store: ArtifactStore) -> None:
    start = threading.Barrier(16)

    def create(number: int) -> int | None:
        start.wait(timeout=60)
        try:
            store.create("race/1.json", str(number).encode())
        except AlreadyPublishedError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [won for won in pool.map(create, range(16)) if won is not None]
    assert len(winners) == 1
    assert store.read("race/1.json") == str(winners[0]).encode()


def test_a_missing_object_is_named(store: ArtifactStore) -> None:
    with pytest.raises(NotFoundError, match=r"models/none\.json"):
        store.read("models/none.json")


def test_what_was_deleted_is_gone_and_may_be_created_again(store: ArtifactStore) -> None:
    for name in ("1", "2"):
        store.create(f"leases/k/{name}.json", b"first")
    for _ in range(2):
        store.delete("leases/k/1.json")
    assert store.list("leases/k/") == ["leases/k/2.json"]
    with pytest.raises(NotFoundError):
        store.read("leases/k/1.json")
    store.create("leases/k/1.json", b"second")
    assert store.read("leases/k/1.json") == b"second"


def test_list_is_sorted_recursive_and_ends_at_the_prefix(store: ArtifactStore) -> None:
    for key in ("a/2.json", "a/1.json", "a/b/3.json", "ab/4.json", "c/5.json"):
        store.create(key, b"x")
    assert store.list("a/") == ["a/1.json", "a/2.json", "a/b/3.json"]
    assert store.list("none/") == []


def test_a_stores_time_is_that_of_what_it_writes_now(store: ArtifactStore) -> None:
    store.create("leases/a/1.json", b"lease")
    store.create("leases/b/1.json", b"another")
    (lease,), now = objects_now(store, "leases/a/clock")
    assert (lease.key, lease.num_bytes) == ("leases/a/1.json", 5)
    assert lease.modified_at <= now
    assert store.list("leases/a/") == [lease.key]


def test_list_gives_more_than_one_page(store: ArtifactStore) -> None:
    keys = [f"many/{number:06d}.json" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.create(key, b"x"), keys))
    assert store.list("many/") == keys


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 8 * 2**20, 8 * 2**20 + 1, MULTIPART_BYTES])
def test_a_blob_comes_back_byte_for_byte(
    store: ArtifactStore, tmp_path: Path, num_bytes: int
) -> None:
    data = bytes(range(251)) * (num_bytes // 251) + b"z" * (num_bytes % 251)
    ref = store.put_blob(blob_file(tmp_path, data))
    assert ref == BlobRef(sha256=hashlib.sha256(data).hexdigest(), num_bytes=num_bytes)
    store.fetch_blob(ref, tmp_path / "new folder" / "target")
    assert (tmp_path / "new folder" / "target").read_bytes() == data


def test_a_blob_is_stored_once_under_its_digest(store: ArtifactStore, tmp_path: Path) -> None:
    refs = [store.put_blob(blob_file(tmp_path, b"same bytes")) for _ in range(2)]
    assert refs[0] == refs[1]
    assert store.list("blobs/") == [f"blobs/sha256/{refs[0].sha256}"]


def test_racing_writers_of_one_blob_leave_it_whole(store: ArtifactStore, tmp_path: Path) -> None:
    source = blob_file(tmp_path, b"x" * MULTIPART_BYTES)
    with ThreadPoolExecutor(4) as pool:
        refs = set(pool.map(lambda _: store.put_blob(source).sha256, range(4)))
    ref = BlobRef(sha256=refs.pop(), num_bytes=MULTIPART_BYTES)
    store.fetch_blob(ref, tmp_path / "target")
    assert (tmp_path / "target").stat().st_size == MULTIPART_BYTES


def test_a_stump_under_a_blobs_name_is_replaced(store: ArtifactStore, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"whole bytes").hexdigest()
    store.create(f"blobs/sha256/{digest}", b"whole")
    ref = store.put_blob(blob_file(tmp_path, b"whole bytes"))
    store.fetch_blob(ref, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"whole bytes"


def test_fetching_replaces_the_target(store: ArtifactStore, tmp_path: Path) -> None:
    target = blob_file(tmp_path, b"old")
    store.fetch_blob(store.put_blob(blob_file(tmp_path, b"new")), target)
    assert target.read_bytes() == b"new"


def test_a_missing_blob_writes_no_file(store: ArtifactStore, tmp_path: Path) -> None:
    ref = BlobRef(sha256="0" * 64, num_bytes=3)
    with pytest.raises(NotFoundError, match="0" * 64):
        store.fetch_blob(ref, tmp_path / "fetched" / "target")
    assert list((tmp_path / "fetched").iterdir()) == []


def test_a_corrupt_blob_writes_no_file_and_keeps_the_old(
    store: ArtifactStore, tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"good").hexdigest()
    store.create(f"blobs/sha256/{digest}", b"evil")
    target = tmp_path / "fetched" / "target"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(CorruptBlobError, match=digest):
        store.fetch_blob(BlobRef(sha256=digest, num_bytes=4), target)
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_the_self_test_passes_at_every_start(store: ArtifactStore) -> None:
    verify_conditional_create(store)
    verify_conditional_create(store)
    assert store.list("selftest/") == ["selftest/conditional-create"]


def test_the_self_test_passes_when_processes_start_together(store: ArtifactStore) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(verify_conditional_create, [store] * 3))
    assert store.list("selftest/") == ["selftest/conditional-create"]


def test_a_store_outlives_its_client(url: str, tmp_path: Path) -> None:
    if url == "memory:":
        open_store(url).create("a/1.json", b"x")
        assert open_store(url).list("a/") == []  # each opening is a store of its own
        return
    ref = open_store(url).put_blob(blob_file(tmp_path, b"bytes"))
    open_store(url).fetch_blob(ref, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"bytes"


def test_a_registry_works_on_every_store(store: ArtifactStore, tmp_path: Path) -> None:
    registry = Registry(store, tmp_path / "cache")
    manifest = small_manifest(key := small_key())
    not_run, passed = small_proof(ProofOutcome.NOT_RUN), small_proof(ProofOutcome.PASSED)
    registry.publish_engine(manifest, {"plan": blob_file(tmp_path, b"plan")}, not_run)
    with pytest.raises(AlreadyPublishedError):
        registry.publish_engine(manifest, {}, not_run)
    registry.add_proof(key.digest(), passed)
    (engine,) = Registry(store, tmp_path / "another cache").engines()
    assert engine.proof == passed
    assert (registry.materialise_engine(engine) / "plan").read_bytes() == b"plan"
