"""Compile caches in the store: shared by machines, bounded, believed only when signed."""

import logging
from pathlib import Path
from typing import ClassVar

import pytest
from obstore.store import MemoryStore

from compiler_worker.builders.select import builder_for
from compiler_worker.building.shared_cache import shared_cache
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.compile_caches import CacheScope, bounded
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import BlobRef
from services.contracts.registry.registry import Registry
from services.contracts.security.signing import Signer
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from tests.documents import small_key
from tests.signing_keys import new_keys

KEY = small_key().model_copy(update={"kind": EngineKind.INDUCTOR})


@pytest.fixture
def store(tmp_path: Path) -> ObstoreArtifactStore:
    return open_store(str(tmp_path / "store"))


class Machines:
    """Workers with a disk of their own each, on one store."""

    def __init__(self, store: ObstoreArtifactStore, folder: Path) -> None:
        self._store, self._folder = store, folder

    def new(self, name: str, signer: Signer | None = None, **settings: object) -> WorkerContext:
        cache = self._folder / name
        chosen = CompilerSettings(cache_dir=cache, **settings)  # type: ignore[arg-type]
        registry = Registry(self._store, cache)
        return WorkerContext(registry=registry, settings=chosen, devices={}, signer=signer)


@pytest.fixture
def machines(store: ObstoreArtifactStore, tmp_path: Path) -> Machines:
    return Machines(store, tmp_path)


def leave(
    worker: WorkerContext, name: str, data: bytes, key: BuildKey = KEY, max_bytes: int = 2**20
) -> None:
    """Have a build leave a file behind."""
    with shared_cache(key, worker, max_bytes) as folder:
        assert folder is not None
        (folder / name).write_bytes(data)


def found(worker: WorkerContext, key: BuildKey = KEY) -> dict[str, bytes]:
    """What a build finds."""
    with shared_cache(key, worker) as folder:
        assert folder is not None
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def scope() -> CacheScope:
    known = builder_for(KEY.kind).cache_scope(KEY)
    assert known is not None
    return known


def test_what_one_machine_compiled_another_one_finds(machines: Machines) -> None:
    leave(machines.new("a"), "x.bin", b"object")
    leave(machines.new("b"), "y.bin", b"another")
    assert found(machines.new("c")) == {"x.bin": b"object", "y.bin": b"another"}


def test_nothing_new_is_no_new_revision(machines: Machines) -> None:
    leave(machines.new("a"), "x.bin", b"object")
    other = machines.new("b")
    found(other)
    number, _ = other.registry.compile_cache(scope())
    assert number == 1


def test_a_file_that_changed_replaces_its_elder(machines: Machines) -> None:
    leave(machines.new("a"), "timing.cache", b"old")
    leave(machines.new("b"), "timing.cache", b"newer")
    assert found(machines.new("c")) == {"timing.cache": b"newer"}


@pytest.mark.parametrize(
    "other",
    [
        {"toolchain": {"torch": "0.1"}},
        {"generation": "cpu-x86_64-amx"},
    ],
)
def test_another_toolchain_or_generation_finds_nothing(
    machines: Machines, other: dict[str, object]
) -> None:
    leave(machines.new("a"), "x.bin", b"object")
    assert found(machines.new("b"), KEY.model_copy(update=other)) == {}


def test_another_master_of_the_same_compiler_finds_it(machines: Machines) -> None:
    leave(machines.new("a"), "x.bin", b"object")
    sibling = KEY.model_copy(update={"master_digest": "b" * 64})
    assert found(machines.new("b"), sibling) == {"x.bin": b"object"}


@pytest.mark.parametrize(
    "other",
    [
        {"device_name": "NVIDIA H100"},
        {"driver": "1.2"},
        {"device_memory_gib": 80},
        {"builder_options": {"level": "5"}},
    ],
)
def test_timings_of_one_device_are_never_another_one_s(other: dict[str, object]) -> None:
    key = KEY.model_copy(update={"kind": EngineKind.TENSORRT, "device_name": "NVIDIA H200"})
    builder = builder_for(key.kind)
    assert builder.cache_scope(key) != builder.cache_scope(key.model_copy(update=other))


def test_a_cache_is_no_part_of_a_key() -> None:
    assert not any("cache" in name for name in BuildKey.model_fields)


def test_kinds_that_keep_nothing_and_settings_that_say_so_have_no_folder(
    machines: Machines,
) -> None:
    plain = KEY.model_copy(update={"kind": EngineKind.OPENVINO})
    with shared_cache(plain, machines.new("a")) as folder:
        assert folder is None
    with shared_cache(KEY, machines.new("b", is_compile_cache_shared=False)) as folder:
        assert folder is None


def test_a_damaged_blob_is_left_out_with_a_warning(
    machines: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave(machines.new("a"), "x.bin", b"object")
    (blob,) = (tmp_path / "store" / "blobs" / "sha256").iterdir()
    blob.write_bytes(b"damage")
    with caplog.at_level(logging.WARNING):
        assert found(machines.new("b")) == {}
    assert "the compile cache lacks x.bin" in caplog.text


def test_a_revision_that_cannot_be_read_is_replaced(
    machines: Machines, store: ObstoreArtifactStore
) -> None:
    store.create(f"caches/{scope().digest()}/000001.json", b"{no json")
    leave(machines.new("a"), "x.bin", b"object")
    assert found(machines.new("b")) == {"x.bin": b"object"}


def test_a_worker_with_a_key_believes_its_own_signature_alone(
    machines: Machines, tmp_path: Path
) -> None:
    ours, theirs = (Signer(new_keys(tmp_path, name).private) for name in ("ours", "theirs"))
    leave(machines.new("a"), "evil.bin", b"unsigned")
    assert found(machines.new("b", ours)) == {}
    leave(machines.new("c", theirs), "evil.bin", b"signed by another")
    assert found(machines.new("d", ours)) == {}
    leave(machines.new("e", ours), "x.bin", b"object")
    assert found(machines.new("f", ours)) == {"x.bin": b"object"}


@pytest.mark.parametrize(
    ("order", "kept"),
    [("cba", "cb"), ("Xcba", "cb"), ("cXba", "cb"), ("X", ""), ("", "")],
)
def test_only_the_newest_files_that_fit_are_kept(order: str, kept: str) -> None:
    sizes = {"a": 4, "b": 4, "c": 4, "X": 9}
    assert bounded(order, sizes, max_bytes=8) == tuple(kept)


class CountingStore(ObstoreArtifactStore):
    """Notes the names of the files that are stored."""

    stored: ClassVar[list[str]] = []

    def put_blob(self, source: Path) -> BlobRef:
        """Note it, then store it."""
        self.stored.append(source.name)
        return super().put_blob(source)


def test_beyond_the_bound_the_oldest_goes_and_nothing_is_stored_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CountingStore, "stored", [])
    counting = CountingStore(MemoryStore(), "memory")
    worker = Machines(counting, tmp_path).new("a")
    with caplog.at_level(logging.INFO):
        for name, num_bytes in (("old.bin", 4), ("mid.bin", 4), ("new.bin", 4), ("huge.bin", 9)):
            leave(worker, name, b"x" * num_bytes, max_bytes=8)
    dropped = [line.rpartition(": ")[2] for line in caplog.messages if "its bound" in line]
    assert dropped == ["old.bin", "huge.bin"]
    for _ in range(2):
        with shared_cache(KEY, worker, 8) as folder:
            assert folder is not None
            assert sorted(path.name for path in folder.iterdir()) == ["mid.bin", "new.bin"]
    assert counting.stored == ["old.bin", "mid.bin", "new.bin"]
    assert worker.registry.compile_cache(scope())[0] == 3, "no revision for what is not kept"
