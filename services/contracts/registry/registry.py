"""The registry: models, engines, proofs, joint runs, signatures, plans, records, and events.

All that other parts do with the store. Whatever is listed here is whole: a document is
created only after everything that it names, and never changes afterwards.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from services.contracts.errors import NotFoundError, StoreError
from services.contracts.model.manifest import BlobRef, MasterRecord, ModelVersion, PublishedEngine
from services.contracts.registry.builds import BuildRegistry, CacheRegistry
from services.contracts.registry.engines import EngineRegistry, JointRegistry
from services.contracts.registry.event_log import EventRegistry
from services.contracts.registry.sample_windows import TrafficRegistry
from services.contracts.registry.serving import ServingRegistry
from services.contracts.registry.trust import TrustRegistry
from services.contracts.registry.weights import WeightRegistry
from services.contracts.store.artifact_store import ArtifactStore
from services.contracts.store.cache import FileCache
from services.contracts.store.listing import Listing
from services.contracts.store.object_store import SELF_TEST_KEY
from services.contracts.traffic.sample_cipher import SampleCipher, is_sealed, opened_samples

if TYPE_CHECKING:
    from services.contracts.kserve.tensors import Array


class Registry(
    WeightRegistry,
    EngineRegistry,
    JointRegistry,
    TrustRegistry,
    BuildRegistry,
    CacheRegistry,
    EventRegistry,
    ServingRegistry,
    TrafficRegistry,
):
    """Everything published, and its files on this disk; safe to share between threads."""

    def __init__(
        self, store: ArtifactStore, cache_dir: Path, sample_key: Path | None = None
    ) -> None:
        """Open nothing yet but the key.

        Args:
            store: what is published.
            cache_dir: verified copies on this machine.
            sample_key: file of the key that samples are sealed with; None has them in the clear.

        Raises:
            InvalidRequestError: the file has no key.
        """
        super().__init__(store)
        self.cipher = SampleCipher(sample_key) if sample_key else None
        self._cache = FileCache(store, cache_dir)
        self._same = SameStore(store)

    def require_same_store(self) -> None:
        """Raise StoreError if another store, or none, is where this one was at the first call."""
        self._same.check()

    def with_documents(self, keys: Iterable[str]) -> Self:
        """The same, to which these are all documents of engines and joint runs: none is listed."""
        listing = Listing(self._store.list)
        return self._listed(listing.with_keys(("engines/", "joint_runs/"), keys))

    def materialise_master(self, record: MasterRecord) -> Path:
        """A folder with the master's files, verified; raises as `FileCache.folder` does."""
        return self._cache.folder(record.files)

    def materialise_graph(self, record: MasterRecord) -> Path:
        """The master's `model.onnx` without what is beside it; raises as `FileCache.file` does."""
        return self._cache.file(record.files["model.onnx"], ".onnx")

    def materialise_engine(self, engine: PublishedEngine) -> Path:
        """A folder with the engine's files, verified; raises as `FileCache.folder` does."""
        return self._cache.folder(engine.manifest.files)

    def materialise_samples(self, ref: BlobRef) -> Path:
        """A model's samples as one .npz file, verified; raises as `FileCache.file` does."""
        return self._cache.file(ref, ".npz")

    def plain_samples(self, ref: BlobRef | None, folder: Path) -> Path | None:
        """The same of samples that may be sealed: opened in a folder, for as long as that lives.

        Raises StoreError where the key is another one, or missing.
        """
        path = self.materialise_samples(ref) if ref else None
        if ref is None or path is None or not is_sealed(path):
            return path
        plain = folder / path.name
        plain.touch(mode=0o600)
        plain.write_bytes(opened_samples(path.read_bytes(), self.cipher, f"blob {ref.sha256}"))
        return plain

    def put_samples(self, arrays: "Mapping[str, Array]", folder: Path) -> BlobRef:
        """Store samples, sealed where there is a key; `folder` is for a file meanwhile.

        Arrays are [rows, ...].
        """
        from services.contracts.traffic.sampled_rows import bytes_from_arrays

        data = bytes_from_arrays(arrays)
        file = folder / "samples"
        file.write_bytes(self.cipher.sealed(data) if self.cipher else data)
        return self._store.put_blob(file)

    def calibration_rows(self, version: ModelVersion) -> "list[dict[str, Array]]":
        """The rows, [...] by input, of a version's calibration set; none where it has none.

        Raises SealedError where they are sealed and the key is another one, or missing.
        """
        from services.contracts.traffic.sampled_rows import arrays_from_bytes

        if version.calibration is None:
            return []
        stored = self.materialise_samples(version.calibration).read_bytes()
        what = f"the calibration set of {version.name} version {version.version}"
        arrays = arrays_from_bytes(opened_samples(stored, self.cipher, what))
        rows = zip(*arrays.values(), strict=True)
        return [dict(zip(arrays, row, strict=True)) for row in rows]

    def materialise_tokenizer(self, ref: BlobRef) -> Path:
        """A model's `tokenizer.json`, verified; raises as `FileCache.file` does."""
        return self._cache.file(ref, ".json")


class SameStore:
    """Refuses to go on with another store than the one that was there at first."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._known = ""

    def check(self) -> None:
        """Look who it is; one that was never tested has no identity, and any may follow it.

        Raises:
            StoreError: it is another one, or none, or it cannot be read.
        """
        found = _identity(self._store)
        self._known = self._known or found
        if found != self._known:
            raise StoreError(
                f"{self._store!r} is {'another store' if found else 'empty'} now: expected the "
                f"identity '{self._known}', found '{found}'. Replicas keep serving; restore the "
                "store (is its volume mounted?), or restart the fleet to go on with this one"
            )


def _identity(store: ArtifactStore) -> str:
    """What the first process that tested a store left in it; "" in an untested one."""
    try:
        return store.read(SELF_TEST_KEY).decode(errors="replace")
    except NotFoundError:
        return ""
