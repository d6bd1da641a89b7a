"""The registry: models, engines, proofs, joint runs, signatures, plans, records, and events.

All that other parts do with the store. Whatever is listed here is whole: a document is
created only after everything that it names, and never changes afterwards.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from services.contracts.model.manifest import BlobRef, MasterRecord, PublishedEngine
from services.contracts.registry.builds import BuildRegistry
from services.contracts.registry.caches import CacheRegistry
from services.contracts.registry.engines import EngineRegistry
from services.contracts.registry.event_log import EventRegistry
from services.contracts.registry.joint_runs import JointRegistry
from services.contracts.registry.serving import ServingRegistry
from services.contracts.registry.trust import TrustRegistry
from services.contracts.registry.weights import WeightRegistry
from services.contracts.store.artifact_store import ArtifactStore
from services.contracts.store.cache import FileCache
from services.contracts.store.identity import SameStore
from services.contracts.store.listing import Listing


class Registry(
    WeightRegistry,
    EngineRegistry,
    JointRegistry,
    TrustRegistry,
    BuildRegistry,
    CacheRegistry,
    EventRegistry,
    ServingRegistry,
):
    """Everything published, and its files on this disk; safe to share between threads."""

    def __init__(self, store: ArtifactStore, cache_dir: Path) -> None:
        super().__init__(store)
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

    def materialise_engine(self, engine: PublishedEngine) -> Path:
        """A folder with the engine's files, verified; raises as `FileCache.folder` does."""
        return self._cache.folder(engine.manifest.files)

    def materialise_samples(self, ref: BlobRef) -> Path:
        """A model's samples as one .npz file, verified; raises as `FileCache.file` does."""
        return self._cache.file(ref, ".npz")

    def materialise_tokenizer(self, ref: BlobRef) -> Path:
        """A model's `tokenizer.json`, verified; raises as `FileCache.file` does."""
        return self._cache.file(ref, ".json")
