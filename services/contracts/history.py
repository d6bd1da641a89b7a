"""What builds and proofs have added to a store, each told once: for whoever counts them."""

import logging
import re
from collections.abc import Iterator
from typing import TypeVar

from services.contracts.build_key import BuildKey
from services.contracts.document import Document
from services.contracts.errors import StoreError
from services.contracts.manifest import BuildRecord, EngineManifest, Proof
from services.contracts.records import parsed
from services.contracts.store import ArtifactStore

_logger = logging.getLogger(__name__)
_BUILDS, _ENGINES = "builds/", "engines/"
_PROOF_KEY = re.compile(r"(engines/[^/]+/[0-9a-f]{64}/)proofs/[0-9a-f]{64}/\d{6,}\.json")
_DocumentT = TypeVar("_DocumentT", bound=Document)


class BuildHistory:
    """Reads what is new since its last look; a new process begins with all that there is."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        # Keys alone: a history of years is read once, and not kept in memory.
        self._seen_builds: set[str] = set()
        self._seen_proofs: set[str] = set()

    def new_build_records(self) -> list[BuildRecord]:
        """Records of attempts that were not told before.

        Raises:
            StoreError: the store failed; nothing counts as told.
        """
        listed = self._store.list(_BUILDS)
        new = [key for key in listed if key not in self._seen_builds]
        records = [record for _, record in self._read(new, BuildRecord)]
        self._seen_builds = set(listed)
        return records

    def new_proofs(self) -> list[tuple[BuildKey, Proof]]:
        """Published proofs that were not told before, with the keys of their engines.

        Those of a publisher that has not finished wait for the next look.

        Raises:
            StoreError: the store failed; nothing counts as told.
        """
        listed = self._store.list(_ENGINES)
        manifests = {key for key in listed if key.endswith("/manifest.json")}
        manifest_by_proof = {
            key: f"{match[1]}manifest.json"
            for key in listed
            if (match := _PROOF_KEY.fullmatch(key))
        }
        whole = {key for key, manifest in manifest_by_proof.items() if manifest in manifests}
        new = sorted(whole - self._seen_proofs)
        manifest_keys = sorted({manifest_by_proof[key] for key in new})
        engines = dict(self._read(manifest_keys, EngineManifest))
        proofs = [
            (engines[manifest_by_proof[key]].key, proof)
            for key, proof in self._read(new, Proof)
            if manifest_by_proof[key] in engines
        ]
        self._seen_proofs = whole
        return proofs

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
