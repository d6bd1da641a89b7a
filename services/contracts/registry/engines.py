"""Engines, their proofs and build records in the store, and joint runs.

The master stands in an engine's path, so that the engines of one are found without those of all.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildRecord
from services.contracts.errors import (
    AlreadyPublishedError,
    CorruptBlobError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
)
from services.contracts.model.manifest import BlobRef, EngineManifest, Proof, PublishedEngine
from services.contracts.registry.records import RecordKeeper, numbered_key, revision_numbers
from services.contracts.security.provenance import PAYLOAD_TYPE, Envelope
from services.contracts.selection.joint_run import JointRun
from services.contracts.store.artifact_store import put_files
from services.contracts.store.listing import keys_below
from services.contracts.text.nearest import nearest

_logger = logging.getLogger(__name__)
_ENGINES = "engines/"
_BUILDS = "builds/"
_MANIFEST_KEY = re.compile(r"(engines/[^/]+/([0-9a-f]{64})/)manifest\.json")


class EngineRegistry(RecordKeeper):
    """Publishes engines with their proofs, and finds them."""

    def publish_engine(
        self, manifest: EngineManifest, files: Mapping[str, Path], proof: Proof
    ) -> PublishedEngine:
        """Publish an engine: its files, its proof, and last the manifest that makes it visible.

        Args:
            manifest: `manifest.files` may be empty: it is filled from `files`.
            files: paths on this machine by file name; empty for an engine that is the master
                itself.
            proof: of this engine; may be followed by others later.

        Raises:
            AlreadyPublishedError: the build key has an engine; nothing was overwritten.
            CorruptBlobError: the manifest names other digests than the files have.
        """
        digest = manifest.key.digest()
        folder = engine_folder(manifest.key)
        if f"{folder}manifest.json" in self._records.keys(folder):
            raise AlreadyPublishedError(f"engine {digest} is published already")
        refs = put_files(self._store, files)
        if manifest.files and manifest.files != refs:
            raise CorruptBlobError(f"engine {digest}: its files are not those of its manifest")
        manifest = manifest.model_copy(update={"files": refs})
        stored = hashlib.sha256(manifest.canonical_json()).hexdigest()
        self._records.append(_proofs_prefix(folder, stored), proof)
        self._records.create(f"{folder}manifest.json", manifest)
        return PublishedEngine(digest=digest, manifest=manifest, proof=proof)

    def add_proof(self, digest: str, proof: Proof) -> PublishedEngine:
        """Add a newer proof to an engine; from now on it is the one that counts.

        Raises:
            NotFoundError: no such engine.
        """
        folder = self._folder(digest)
        _, stored = self._records.read_hashed(f"{folder}manifest.json", EngineManifest)
        self._records.append(_proofs_prefix(folder, stored), proof)
        return self._engine(folder, self._records.keys(folder))

    def engines(self, master_digest: str | None = None) -> list[PublishedEngine]:
        """All engines, or those of one master, by digest.

        An engine that this version of Smelt cannot read is left out with a warning: a newer
        compiler must not stop the fleet.
        """
        keys = self.engine_keys(master_digest)
        found: list[PublishedEngine] = []
        for digest, folder in sorted(_folders(keys).items()):
            try:
                found.append(self._engine(folder, keys_below(keys, folder)))
            except (StoreError, NotFoundError) as error:
                _logger.warning("engine %s left out: %s", digest, error)
        return found

    def prefetch_engines(self, master_digests: Iterable[str]) -> None:
        """Read all that `engines` needs of several masters, many documents at once."""
        masters = list(master_digests)
        keys = [key for master in masters for key in self.engine_keys(master)]
        manifests = [key for key in keys if _MANIFEST_KEY.fullmatch(key)]
        self._records.prefetch(manifests, EngineManifest)
        # The newest of each manifest's; of others' there is hardly ever any.
        newest = {key.rpartition("/")[0]: key for key in keys if "/proofs/" in key}
        self._records.prefetch(newest.values(), Proof)

    def engine_keys(self, master_digest: str | None = None) -> list[str]:
        """Keys of all that is published of engines, or of one master's: what is new adds some."""
        within = _ENGINES if master_digest is None else _master_folder(master_digest)
        return self._records.keys(within)

    def engine(self, digest: str) -> PublishedEngine:
        """One engine by its digest or any prefix of it that names only one.

        Raises:
            NotFoundError: none begins with it.
            InvalidRequestError: several begin with it; names them.
        """
        folder = self._folder(digest)
        return self._engine(folder, self._records.keys(folder))

    def engine_of(self, key: BuildKey) -> PublishedEngine:
        """The engine of a key; raises NotFoundError. Lists nothing else."""
        folder = engine_folder(key)
        return self._engine(folder, self._records.keys(folder))

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
        return only_match("key", key_digest, known)

    def build_record_keys(self) -> list[str]:
        """Keys of the records of all attempts."""
        return self._records.keys(_BUILDS)

    def build_records(self, key_digest: str) -> list[BuildRecord]:
        """All attempts to build a key, oldest first."""
        return self._records.revisions(_builds_prefix(key_digest), BuildRecord)

    def _folder(self, digest: str) -> str:
        folders = _folders(self._records.keys(_ENGINES))
        return folders[only_match("engine", digest, folders)]

    def _engine(self, folder: str, keys: list[str]) -> PublishedEngine:
        manifest, stored = self._records.read_hashed(f"{folder}manifest.json", EngineManifest)
        if not folder.startswith(_master_folder(manifest.key.master_digest)):
            # Copied there: its proof is right, and of other weights.
            raise StoreError(
                f"'{folder}manifest.json' is of master {manifest.key.master_digest}, wanted one of "
                "the master in its path: remove that folder, and build the model again"
            )
        proofs = _proofs_prefix(folder, stored)
        numbers = revision_numbers(keys, proofs)
        if not numbers:
            raise StoreError(f"no proof below '{proofs}': was one deleted?")
        return PublishedEngine(
            digest=folder.split("/")[2],
            manifest=manifest,
            proof=self._records.read(numbered_key(proofs, numbers[-1]), Proof),
        )


def engine_folder(key: BuildKey) -> str:
    """Where all documents of an engine are."""
    return f"{_master_folder(key.master_digest)}{key.digest()}/"


def only_match(what: str, prefix: str, known: Collection[str]) -> str:
    """The one digest that begins so.

    Args:
        what: the digests are of, for errors.
        prefix: of a digest.
        known: all digests.

    Raises:
        NotFoundError: none does; names the nearest.
        InvalidRequestError: several do.
    """
    matches = sorted(digest for digest in known if digest.startswith(prefix))
    if not matches:
        hint = nearest(prefix, sorted({digest[: len(prefix)] for digest in known}))
        raise NotFoundError(
            f"{what} '{prefix}' not found among {len(known)} {what}s{hint}; see: smelt engines, "
            "smelt why MODEL"
        )
    if len(matches) > 1:
        raise InvalidRequestError(
            f"{what} '{prefix}' is ambiguous, give more digits: {', '.join(matches)}"
        )
    return matches[0]


def _folders(keys: list[str]) -> dict[str, str]:
    """Folders of the published engines by digest; half-published ones have none yet."""
    return {match[2]: match[1] for key in keys if (match := _MANIFEST_KEY.fullmatch(key))}


def _master_folder(master_digest: str) -> str:
    return f"{_ENGINES}{master_digest}/"


def _proofs_prefix(folder: str, manifest_sha256: str) -> str:
    # A proof is about bytes, not about a key: proofs of a publisher that ended or lost the
    # race for this key must never count for the engine that another one published.
    return f"{folder}proofs/{manifest_sha256}/"


def _builds_prefix(key_digest: str) -> str:
    return f"{_BUILDS}{key_digest}/"


if TYPE_CHECKING:  # it needs a library of cryptography, which a gateway has not
    from services.contracts.security.signing import TrustRoot


class JointRegistry(RecordKeeper):
    """Keeps which engines were timed together, and finds them."""

    def add_joint_run(self, run: JointRun) -> int:
        """Keep a run; returns its number."""
        folder = f"{_prefix(run.master_digest)}{run.device.generation}/"
        return self._records.append(folder, run)

    def joint_runs(self, master_digest: str, trust: TrustRoot | None = None) -> list[JointRun]:
        """The runs of a master, oldest first in each generation.

        Args:
            master_digest: of the master.
            trust: with it, runs without a signature that counts are left out.
        """
        found = (self._joint_run(key) for key in self.joint_run_keys(master_digest))
        return [run for run in found if run and _is_trusted(run, master_digest, trust)]

    def joint_run_keys(self, master_digest: str) -> list[str]:
        """The names of a master's runs: they show a new one without reading any."""
        return self._records.keys(_prefix(master_digest))

    def _joint_run(self, key: str) -> JointRun | None:
        try:
            return self._records.read(key, JointRun)
        except StoreError as error:
            # Of a newer compiler, which must not stop the fleet: engines have their proofs.
            _logger.warning("a joint run is left out: %s", error)
            return None


def _is_trusted(run: JointRun, master_digest: str, trust: TrustRoot | None) -> bool:
    if run.master_digest != master_digest:
        return False
    if trust is None:
        return True
    signature = run.signature
    if signature is None:
        return False
    signed = Envelope(payload_type=PAYLOAD_TYPE, payload="", signatures=(signature,))
    return not trust.fault(signed, signature.keyid, run.payload())


def _prefix(master_digest: str) -> str:
    return f"joint_runs/{master_digest}/"
