"""What builds and proofs have added to a store, each once: for metrics that count them."""

import logging
import re
from collections.abc import Collection, Iterator
from typing import TypeVar

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildRecord
from services.contracts.errors import StoreError
from services.contracts.model.document import Document
from services.contracts.model.manifest import EngineManifest, Proof
from services.contracts.registry.records import parsed
from services.contracts.store.artifact_store import ArtifactStore

_logger = logging.getLogger(__name__)
_PROOF_KEY = re.compile(r"(engines/[^/]+/[0-9a-f]{64}/)proofs/[0-9a-f]{64}/\d{6,}\.json")
# Of small documents: some seconds with an object store.
MAX_AT_START = 1000
_DocumentT = TypeVar("_DocumentT", bound=Document)


class BuildHistory:
    """Reads what is new since its last look, and at the first one what is there.

    A store may hold years of it: where there is more than a start may read, nothing of it is, and
    counters begin at 0, as everywhere in Prometheus.
    """

    def __init__(self, store: ArtifactStore, max_at_start: int = MAX_AT_START) -> None:
        """`max_at_start` bounds the records, and the proofs, that the first look reads."""
        self._store = store
        self._max_at_start = max_at_start
        # Keys alone: documents are read once, and not kept in memory.
        self._seen_builds: set[str] | None = None
        self._seen_proofs: set[str] | None = None

    def new_build_records(self, listed: Collection[str]) -> list[BuildRecord]:
        """Records of attempts that are new among all keys of records.

        Raises:
            StoreError: the store failed; all of them are new at the next look too.
        """
        seen = self._known(listed) if self._seen_builds is None else self._seen_builds
        new = [key for key in listed if key not in seen]
        records = [record for _, record in self._read(new, BuildRecord)]
        self._seen_builds = set(listed)
        return records

    def new_proofs(self, listed: Collection[str]) -> list[tuple[BuildKey, Proof]]:
        """Published proofs that are new among all keys of engines, with their engines' keys.

        Those of a publisher that has not finished wait for the next look.

        Raises:
            StoreError: the store failed; all of them are new at the next look too.
        """
        manifests = {key for key in listed if key.endswith("/manifest.json")}
        manifest_by_proof = {
            key: f"{match[1]}manifest.json"
            for key in listed
            if (match := _PROOF_KEY.fullmatch(key))
        }
        whole = {key for key, manifest in manifest_by_proof.items() if manifest in manifests}
        new = sorted(
            whole - (self._known(whole) if self._seen_proofs is None else self._seen_proofs)
        )
        manifest_keys = sorted({manifest_by_proof[key] for key in new})
        engines = dict(self._read(manifest_keys, EngineManifest))
        proofs = [
            (engines[manifest_by_proof[key]].key, proof)
            for key, proof in self._read(new, Proof)
            if manifest_by_proof[key] in engines
        ]
        self._seen_proofs = whole
        return proofs

    def _known(self, listed: Collection[str]) -> set[str]:
        """What counts as read before the first look."""
        return set(listed) if len(listed) > self._max_at_start else set()

    def _read(self, keys: list[str], kind: type[_DocumentT]) -> Iterator[tuple[str, _DocumentT]]:
        """Documents by key, without those that this version of Smelt cannot understand."""
        for key in keys:
            # It may fail, and be read the next time.
            data = self._store.read(key)
            try:
                yield key, parsed(key, data, kind)
            except StoreError as error:
                # A newer compiler's document must not keep the others from being counted.
                _logger.warning("%s is not counted: %s", key, error)
