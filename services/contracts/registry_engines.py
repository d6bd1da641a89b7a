"""Engines, their proofs and build records in the store."""

import hashlib
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from services.contracts.errors import (
    AlreadyPublishedError,
    CorruptBlobError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
)
from services.contracts.manifest import (
    BlobRef,
    BuildRecord,
    EngineManifest,
    Proof,
    PublishedEngine,
)
from services.contracts.records import RecordKeeper, numbered_key, revision_numbers
from services.contracts.store import put_files

_logger = logging.getLogger(__name__)
_ENGINES = "engines/"
_BUILDS = "builds/"
_MANIFEST_KEY = re.compile(r"engines/([0-9a-f]{64})/manifest\.json")


class EngineRegistry(RecordKeeper):
    """Publishes engines with their proofs, and finds them."""

    def publish_engine(
        self, manifest: EngineManifest, files: Mapping[str, Path], proof: Proof
    ) -> PublishedEngine:
        """Publish an engine: its files, its proof, and last the manifest that makes it visible.

        `manifest.files` may be empty: it is filled from `files`.

        Raises:
            AlreadyPublishedError: the build key has an engine; nothing was overwritten.
            CorruptBlobError: the manifest names other digests than the files have.
        """
        digest = manifest.key.digest()
        if _manifest_key(digest) in self._records.keys(_engine_prefix(digest)):
            raise AlreadyPublishedError(f"engine {digest} is published already")
        refs = put_files(self._store, files)
        if manifest.files and manifest.files != refs:
            raise CorruptBlobError(f"engine {digest}: its files are not those of its manifest")
        manifest = manifest.model_copy(update={"files": refs})
        self._records.append(_proofs_prefix(digest, manifest.canonical_json()), proof)
        self._records.create(_manifest_key(digest), manifest)
        return PublishedEngine(digest=digest, manifest=manifest, proof=proof)

    def add_proof(self, digest: str, proof: Proof) -> PublishedEngine:
        """Add a newer proof to an engine; from now on it is the one that counts.

        Raises:
            NotFoundError: no such engine.
        """
        manifest_bytes = self._records.read_bytes(_manifest_key(digest))
        self._records.append(_proofs_prefix(digest, manifest_bytes), proof)
        return self._engine(digest, self._records.keys(_engine_prefix(digest)))

    def engines(self, master_digest: str | None = None) -> list[PublishedEngine]:
        """All engines, or those of one master, by digest.

        An engine that this version of Smelt cannot read is left out with a warning: a newer
        compiler must not stop the fleet.
        """
        found: list[PublishedEngine] = []
        for digest, keys in _keys_by_engine(self._records.keys(_ENGINES)).items():
            try:
                engine = self._engine(digest, keys)
            except StoreError as error:
                _logger.warning("engine %s left out: %s", digest, error)
                continue
            if master_digest in (None, engine.manifest.key.master_digest):
                found.append(engine)
        return found

    def engine(self, digest: str) -> PublishedEngine:
        """One engine by its digest or any prefix of it that names only one.

        Raises:
            NotFoundError: none begins with it.
            InvalidRequestError: several begin with it; names them.
        """
        keys = self._records.keys(_ENGINES)
        return self._engine(_only_match("engine", digest, _engine_digests(keys)), keys)

    def record_build(self, record: BuildRecord) -> None:
        """Keep what happened in one attempt to build a key."""
        self._records.append(_builds_prefix(record.key.digest()), record)

    def keep_sample(self, path: Path) -> BlobRef:
        """Store the arrays of a failed proof's worst sample."""
        return self._store.put_blob(path)

    def attempted(self, key_digest: str) -> str:
        """The full digest of a key that was tried to build, from its beginning.

        Raises:
            NotFoundError: none begins with it.
            InvalidRequestError: several begin with it; names them.
        """
        known = {key.split("/")[1] for key in self._records.keys(_BUILDS)}
        return _only_match("key", key_digest, known)

    def build_records(self, key_digest: str) -> list[BuildRecord]:
        """All attempts to build a key, oldest first."""
        prefix = _builds_prefix(key_digest)
        numbers = self._records.numbers(prefix)
        return [self._records.read(numbered_key(prefix, n), BuildRecord) for n in numbers]

    def _engine(self, digest: str, keys: list[str]) -> PublishedEngine:
        manifest_key = _manifest_key(digest)
        proofs = _proofs_prefix(digest, self._records.read_bytes(manifest_key))
        numbers = revision_numbers(keys, proofs)
        if not numbers:
            raise StoreError(f"engine {digest} has no proof below '{proofs}': was one deleted?")
        return PublishedEngine(
            digest=digest,
            manifest=self._records.read(manifest_key, EngineManifest),
            proof=self._records.read(numbered_key(proofs, numbers[-1]), Proof),
        )


def _only_match(what: str, prefix: str, known: Collection[str]) -> str:
    matches = sorted(digest for digest in known if digest.startswith(prefix))
    if not matches:
        raise NotFoundError(f"{what} '{prefix}' not found among {len(known)} {what}s")
    if len(matches) > 1:
        raise InvalidRequestError(
            f"{what} '{prefix}' is ambiguous, give more digits: {', '.join(matches)}"
        )
    return matches[0]


def _keys_by_engine(keys: list[str]) -> dict[str, list[str]]:
    """Keys of each published engine; half-published ones have none yet."""
    by_digest: dict[str, list[str]] = {digest: [] for digest in _engine_digests(keys)}
    for key in keys:
        digest = key.removeprefix(_ENGINES).partition("/")[0]
        if digest in by_digest:
            by_digest[digest].append(key)
    return by_digest


def _engine_digests(keys: list[str]) -> list[str]:
    return [match[1] for key in keys if (match := _MANIFEST_KEY.fullmatch(key))]


def _engine_prefix(digest: str) -> str:
    return f"{_ENGINES}{digest}/"


def _manifest_key(digest: str) -> str:
    return f"{_engine_prefix(digest)}manifest.json"


def _proofs_prefix(digest: str, manifest_bytes: bytes) -> str:
    # A proof is about bytes, not about a key: proofs of a publisher that died or lost the
    # race for this key must never count for the engine that another one published.
    return f"{_engine_prefix(digest)}proofs/{hashlib.sha256(manifest_bytes).hexdigest()}/"


def _builds_prefix(key_digest: str) -> str:
    return f"{_BUILDS}{key_digest}/"
