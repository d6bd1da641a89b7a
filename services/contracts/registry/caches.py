"""Compile caches in the store."""

from pathlib import Path

from pydantic import ValidationError

from services.contracts.builds.compile_caches import CacheRevision, CacheScope
from services.contracts.errors import AlreadyPublishedError
from services.contracts.model.manifest import BlobRef
from services.contracts.registry.records import RecordKeeper, numbered_key


class CacheRegistry(RecordKeeper):
    """Keeps what compilers may use again, and finds it."""

    def compile_cache(self, scope: CacheScope) -> tuple[int, CacheRevision | None]:
        """The newest revision and its number; None and 0 without one, None for a foreign one."""
        prefix = _prefix(scope)
        numbers = self._records.numbers(prefix)
        if not numbers:
            return 0, None
        data = self._store.read(numbered_key(prefix, numbers[-1]))
        try:
            return numbers[-1], CacheRevision.from_json(data)
        except ValidationError:
            return numbers[-1], None

    def offer_compile_cache(self, number: int, revision: CacheRevision) -> bool:
        """Create a revision under a number; False when another worker's has it."""
        try:
            self._records.create(numbered_key(_prefix(revision.scope), number), revision)
        except AlreadyPublishedError:
            return False
        return True

    def put_cache_file(self, path: Path) -> BlobRef:
        """Store a file that a revision will name."""
        return self._store.put_blob(path)

    def fetch_cache_file(self, ref: BlobRef, target: Path) -> None:
        """Write a cache's file, verified, whole or not at all; raises as `fetch_blob` does."""
        self._store.fetch_blob(ref, target)


def _prefix(scope: CacheScope) -> str:
    return f"caches/{scope.digest()}/"
