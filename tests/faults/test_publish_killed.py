"""A publisher that is killed between any two steps leaves nothing or the whole.

This file is also the child: `python -m tests.faults.test_publish_killed FOLDER STEP` publishes a
master, a model version, an engine and a second proof into FOLDER and kills itself before STEP.
"""

import filecmp
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import LocalStore

from services.contracts.errors import AlreadyPublishedError, NotFoundError
from services.contracts.model.local_master import LocalMaster
from services.contracts.model.manifest import (
    BlobRef,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from tests.documents import small_key, small_manifest, small_proof

ROOT = Path(__file__).parents[2]
WEIGHTS = b"weights " * (9 * 2**17)  # 9 MiB: a multipart blob
PLAN = b"plan"
KILLED = -signal.SIGKILL
WITHIN_A_BLOB = "within a blob"


class DyingStore(ObstoreArtifactStore):
    """Kills its process before the step with a number."""

    def __init__(self, backend: LocalStore, last_step: int) -> None:
        super().__init__(backend, "a store")
        self._steps_left = last_step

    def _step(self) -> None:
        if self._steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._steps_left -= 1

    def put_blob(self, source: Path) -> BlobRef:
        """One step."""
        self._step()
        return super().put_blob(source)

    def create(self, key: str, data: bytes) -> None:
        """One step."""
        self._step()
        super().create(key, data)

    def fetch_blob(self, ref: BlobRef, target: Path) -> None:
        """One step."""
        self._step()
        super().fetch_blob(ref, target)


class LargeFile(io.FileIO):
    """Kills its process when an upload has read its last part, before the blob is visible.

    More parts than may be in flight were read by then, so some are on the disk.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """The next part; what digests a file reads into memory of its own."""
        part = super().read(size)
        if not part:
            os.kill(os.getpid(), signal.SIGKILL)
        return part


class LargePath(type(Path())):  # type: ignore[misc]
    """A path whose file is that one."""

    def open(self, *args: object, **options: object) -> LargeFile:
        """For reading."""
        return LargeFile(self)


class DyingWithinABlob(ObstoreArtifactStore):
    """Its process does not survive a blob of many parts."""

    def put_blob(self, source: Path) -> BlobRef:
        """Store it, if it is small."""
        is_large = source.stat().st_size >= len(WEIGHTS)
        return super().put_blob(LargePath(source) if is_large else source)


def local_store(folder: Path) -> LocalStore:
    return LocalStore(folder / "store", mkdir=True)


def write_sources(folder: Path, weights: bytes = WEIGHTS) -> dict[str, Path]:
    contents = {"model.onnx": b"graph", "weights.data": weights, "plan": PLAN, "npz": b"samples"}
    folder.mkdir(exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in contents}


def publish_all(registry: Registry, sources: dict[str, Path]) -> None:
    """What a compiler does, in its order; a repeat completes what an earlier run began."""
    files = {name: sources[name] for name in ("model.onnx", "weights.data")}
    opened = LocalMaster(
        digest="d" * 64, files=files, inputs=(), outputs=(), opset=23, num_parameters=1
    )
    master = registry.publish_master(opened)
    version = registry.add_model_version(
        name="mini",
        master=master,
        recipe=Recipe(),
        source="file",
        source_fingerprint="f",
        samples=sources["npz"],
    )
    engine = publish_engine(registry, sources)
    if engine.proof.outcome is not ProofOutcome.PASSED:
        engine = registry.add_proof(engine.digest, small_proof(ProofOutcome.PASSED))
    registry.materialise_master(version.master)
    registry.materialise_engine(engine)


def publish_engine(registry: Registry, sources: dict[str, Path]) -> PublishedEngine:
    manifest = small_manifest(key := small_key(), created_at=f"by process {os.getpid()}")
    files = {"plan": sources["plan"], "sub/graph": sources["model.onnx"]}
    try:
        return registry.publish_engine(manifest, files, small_proof(ProofOutcome.NOT_RUN))
    except AlreadyPublishedError:
        return registry.engine(key.digest())


def run_child(folder: Path, step: int | str) -> int:
    command = [sys.executable, "-m", "tests.faults.test_publish_killed", folder, str(step)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def registry_of(folder: Path, cache: str) -> Registry:
    return Registry(open_store(str(folder / "store")), folder / cache)


def check_nothing_is_half(folder: Path, cache: str) -> None:
    """Whatever a reader with an empty or the killed one's cache can see, it can use."""
    registry = registry_of(folder, cache)
    for version in registry.versions("mini"):
        files = registry.materialise_master(version.master)
        assert filecmp.cmp(files / "weights.data", folder / "weights.data", shallow=False)
        assert version.samples is not None
        assert registry.materialise_samples(version.samples).read_bytes() == b"samples"
    for engine in registry.engines():
        files = registry.materialise_engine(engine)
        assert (files / "plan").read_bytes() == PLAN
        assert (files / "sub" / "graph").read_bytes() == b"graph"


def check_complete(folder: Path) -> None:
    registry = registry_of(folder, "cache")
    assert [version.version for version in registry.versions("mini")] == [1]
    assert [engine.proof.outcome for engine in registry.engines()] == [ProofOutcome.PASSED]


def killed_runs(tmp_path: Path) -> Iterator[Path]:
    """A folder for each step before which a publisher was killed, until one completes."""
    for step in range(100):
        folder = tmp_path / f"step{step}"
        write_sources(folder)
        returncode = run_child(folder, step)
        if returncode == 0:
            assert step >= 14, f"only {step} steps: was one forgotten?"
            check_complete(folder)
            return
        assert returncode == KILLED
        yield folder
    pytest.fail("the publisher never completed")


def test_a_publisher_killed_before_any_step_leaves_nothing_or_the_whole(tmp_path: Path) -> None:
    seen: set[tuple[int, int]] = set()
    for folder in killed_runs(tmp_path):
        registry = registry_of(folder, "cache")
        seen.add((len(registry.versions("mini")), len(registry.engines())))
        check_nothing_is_half(folder, "empty cache")
        check_nothing_is_half(folder, "cache")
        publish_all(registry, write_sources(folder))
        check_complete(folder)
        check_nothing_is_half(folder, "cache")
    assert seen == {(0, 0), (1, 0), (1, 1)}


def test_a_publisher_killed_within_a_blob_leaves_no_blob(tmp_path: Path) -> None:
    weights = WEIGHTS * 6  # more parts than may be in flight
    sources = write_sources(tmp_path, weights)
    assert run_child(tmp_path, WITHIN_A_BLOB) == KILLED
    store = open_store(str(tmp_path / "store"))
    parts = list((tmp_path / "store" / "blobs" / "sha256").iterdir())
    assert len(parts) == 2, "the graph, and a part of the weights under a name of its own"
    assert len(store.list("blobs/")) == 1
    assert any(path.stat().st_size >= 2**20 for path in parts)
    digest = next(path.name.partition("#")[0] for path in parts if "#" in path.name)
    with pytest.raises(NotFoundError):
        store.fetch_blob(BlobRef(sha256=digest, num_bytes=len(weights)), tmp_path / "target")
    publish_all(registry_of(tmp_path, "cache"), sources)
    check_complete(tmp_path)
    check_nothing_is_half(tmp_path, "cache")


def main(folder: Path, step: str) -> None:
    sources = {path.name: path for path in folder.iterdir() if path.is_file()}
    store: ObstoreArtifactStore
    if step == WITHIN_A_BLOB:
        store = DyingWithinABlob(local_store(folder), "a store")
    else:
        store = DyingStore(local_store(folder), int(step))
    publish_all(Registry(store, folder / "cache"), sources)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
