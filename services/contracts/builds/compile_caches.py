"""What compilers may use again, kept in the store: no build key depends on it.

caches/<scope digest>/<n>.json   CacheRevision; the newest counts

The files themselves are blobs. A scope is everything that must be equal for them to be of use;
nothing is ever merged across scopes.
"""

import hashlib
from collections.abc import Mapping, Sequence

from services.contracts.model.document import Document
from services.contracts.model.manifest import BlobRef
from services.contracts.security.provenance import DsseSignature

# Some fifty engines' objects; what a new machine fetches at most.
MAX_CACHE_BYTES = 256 * 2**20


class CacheScope(Document):
    """For whom a cache is.

    Attributes:
        compiler: an engine kind.
        generation, device_name, device_memory_gib, driver: of the build key; what the results
            do not depend on is empty.
        toolchain: version by library.
        flags: builder options that change what is kept.
    """

    compiler: str
    generation: str
    device_name: str = ""
    device_memory_gib: int = 0
    driver: str = ""
    toolchain: dict[str, str]
    flags: dict[str, str] = {}

    def digest(self) -> str:
        """Its name in the store."""
        return hashlib.sha256(self.canonical_json()).hexdigest()


class CacheRevision(Document):
    """The files of one scope.

    Attributes:
        files: by name.
        order: names, the newest first; the last ones are dropped when there is too much.
        signature: of all else, when its writer has a key.
    """

    scope: CacheScope
    files: dict[str, BlobRef]
    order: tuple[str, ...]
    created_at: str
    signature: DsseSignature | None = None

    def payload(self) -> bytes:
        """What is signed."""
        return self.model_copy(update={"signature": None}).canonical_json()


def bounded(
    order: Sequence[str], sizes_bytes: Mapping[str, int], max_bytes: int = MAX_CACHE_BYTES
) -> tuple[str, ...]:
    """The newest names whose files fit together.

    Args:
        order: names, newest first.
        sizes_bytes: of all names.
        max_bytes: of all kept ones; a file larger than this alone is skipped, the next one counts.
    """
    kept = []
    num_bytes = 0
    for name in order:
        if sizes_bytes[name] > max_bytes:
            continue
        num_bytes += sizes_bytes[name]
        if num_bytes > max_bytes:
            break
        kept.append(name)
    return tuple(kept)
