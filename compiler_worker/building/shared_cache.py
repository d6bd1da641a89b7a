"""A compiler's cache that all machines of a generation share through the store.

Nothing here may fail a build: what cannot be fetched, read or stored costs time alone. And
nothing here is used that this worker would not sign: with a key, only caches that were
signed with that key are used, as objects and pickles of compilers are code.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compiler_worker.builders.select import builder_for
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.compile_caches import (
    MAX_CACHE_BYTES,
    CacheRevision,
    CacheScope,
    bounded,
)
from services.contracts.errors import SmeltError
from services.contracts.store.artifact_store import check_file_names
from services.contracts.text.moments import timestamp
from services.engines.caches.compile_cache import compile_cache
from services.engines.caches.unfinished import remove_unfinished

logger = logging.getLogger(__name__)

# Revisions are created once: who is second reads the first's and offers again.
_MAX_ATTEMPTS = 3


@contextmanager
def shared_cache(
    key: BuildKey, worker: WorkerContext, max_bytes: int = MAX_CACHE_BYTES
) -> Iterator[Path | None]:
    """A folder with what the store has for a key's compiler; new files are stored on leaving.

    None for kinds without a cache, and where the settings switch it off.

    Args:
        key: decides which builds share the folder (`Builder.cache_scope`).
        worker: has the store, and the key that caches are signed and verified with.
        max_bytes: beyond it the oldest files are dropped, in the store and on this disk.
    """
    scope = builder_for(key.kind).cache_scope(key)
    if scope is None or not worker.settings.is_compile_cache_shared:
        yield None
        return
    cache = _SharedCache(scope, worker, max_bytes)
    # Not in a `finally`: what a failed build left is no cache of a build that works.
    cache.fetch()
    yield cache.folder
    cache.store()


class _SharedCache:
    """One scope's folder on this disk."""

    def __init__(self, scope: CacheScope, worker: WorkerContext, max_bytes: int) -> None:
        self._scope = scope
        self._worker = worker
        self._max_bytes = max_bytes
        self._registry = worker.registry
        # Within torch's folder, so that it is kept in bounds with it. Apart for each key: what
        # came without one, or under another, must not be signed as if it were this worker's.
        root = compile_cache(worker.settings.cache_dir) / "shared"
        signer = worker.signer
        self.folder = root / (signer.keyid if signer else "unsigned") / scope.digest()

    def fetch(self) -> None:
        """Bring the folder up to what the store has."""
        with _harmless("is not fetched"):
            self.folder.mkdir(parents=True, exist_ok=True)
            _, revision = self._newest()
            for name in revision.order if revision else ():
                target = self.folder / name
                if revision and not _has_size(target, revision.files[name].num_bytes):
                    with _harmless(f"lacks {name}"):
                        self._registry.fetch_cache_file(revision.files[name], target)

    def store(self) -> None:
        """Add what is new to the newest revision, as often as others are first."""
        with _harmless("is not stored"):
            # A child that was ended in the middle left what no machine can load.
            remove_unfinished(self.folder)
            for _ in range(_MAX_ATTEMPTS):
                number, known = self._newest()
                revision, dropped = self._revision(known)
                is_new = revision.files != (known.files if known else {})
                if not is_new or self._registry.offer_compile_cache(number + 1, revision):
                    self._drop(dropped)
                    return

    def _newest(self) -> tuple[int, CacheRevision | None]:
        """The newest revision, None when it is damaged or not signed by this worker."""
        number, revision = self._registry.compile_cache(self._scope)
        signer = self._worker.signer
        if revision is None:
            return number, None
        check_file_names(revision.files)
        if revision.scope != self._scope or set(revision.order) != set(revision.files):
            logger.warning("the compile cache of %s is damaged", self._scope.generation)
            return number, None
        is_ours = signer is None or signer.has_signed(revision.signature, revision.payload())
        if not is_ours:
            logger.warning("a compile cache is not used: this worker's key has not signed it")
        return number, revision if is_ours else None

    def _revision(self, known: CacheRevision | None) -> tuple[CacheRevision, list[str]]:
        """What is to be kept, and the names of what was left out for it."""
        files = dict(known.files) if known else {}
        found = {path.name: path for path in self._found()}
        changed = {n: p for n, p in found.items() if n not in files or not files[n].is_of(p)}
        older = known.order if known else ()
        order = [*reversed(changed), *(name for name in older if name not in changed)]
        sizes = {name: ref.num_bytes for name, ref in files.items()}
        sizes |= {name: path.stat().st_size for name, path in changed.items()}
        kept = bounded(order, sizes, self._max_bytes)
        # Only now: what is dropped at once need not be uploaded.
        put = self._registry.put_cache_file
        dropped = sorted(sizes.keys() - set(kept))
        files |= {name: put(changed[name]) for name in kept if name in changed}
        revision = CacheRevision(
            scope=self._scope,
            files={name: files[name] for name in kept},
            order=kept,
            created_at=timestamp(),
        )
        signer = self._worker.signer
        if signer is None:
            return revision, dropped
        (signature,) = signer.sign(revision.payload()).signatures
        return revision.model_copy(update={"signature": signature}), dropped

    def _found(self) -> list[Path]:
        """Whole files, the newest last; parts have hidden names."""
        return sorted(self.folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime)

    def _drop(self, dropped: Sequence[str]) -> None:
        """Remove what is beyond the bound: else the next build would take it for new."""
        for name in dropped:
            (self.folder / name).unlink(missing_ok=True)
        if dropped:
            logger.info(
                "the compile cache of %s is at its bound of %.0f MiB; dropped, as the oldest or "
                "too large: %s",
                self._scope.compiler,
                self._max_bytes / 2**20,
                ", ".join(dropped),
            )


def _has_size(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    try:
        yield
    except (SmeltError, OSError) as error:
        logger.warning("the compile cache %s: %s", what, error)
