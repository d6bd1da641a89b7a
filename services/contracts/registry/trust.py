"""Signatures of engines in the store, and which engines they do not cover.

engines/<master digest>/<key digest>/signatures/<sha256 of the statement>.<keyid>.json    Envelope

The name holds what is signed: one who changes a manifest, a proof or a master's files finds no
signature under the new name, and cannot make one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.model.manifest import EngineManifest, MasterRecord, Proof, PublishedEngine
from services.contracts.registry.engines import engine_folder
from services.contracts.registry.records import RecordKeeper
from services.contracts.security.provenance import Envelope, statement
from services.contracts.text.words import worker_command

if TYPE_CHECKING:  # it needs a library of cryptography, which a gateway has not
    from services.contracts.security.signing import Signer, TrustRoot


class TrustRegistry(RecordKeeper):
    """Keeps signatures, and finds engines that lack one."""

    def sign(
        self, manifest: EngineManifest, proof: Proof, master: MasterRecord, signer: Signer
    ) -> None:
        """Keep a signature of an engine with a proof; call it before either is published.

        Args:
            manifest: with its files.
            proof: that this manifest is published with.
            master: that the engine was built from.
            signer: has the private key.
        """
        payload = statement(manifest, proof, master)
        key = _signature_key(manifest.key, payload, signer.keyid)
        # Two signatures of one payload differ; the one that is there is as good.
        with suppress(AlreadyPublishedError):
            self._records.create(key, signer.sign(payload))

    def take_signatures(self, key: BuildKey, other: TrustRegistry) -> None:
        """Keep those that another store has of an engine; call it before the engine is published.

        Whether one counts is found where it is read: under its name is nothing but itself.
        """
        for name in other._records.keys(_signatures_prefix(key)):
            with suppress(AlreadyPublishedError):
                self._records.create(name, other._records.read(name, Envelope))

    def untrusted(
        self, engines: Iterable[PublishedEngine], master: MasterRecord, trust: TrustRoot | None
    ) -> dict[str, str]:
        """Why engines may not be loaded, by digest; empty without a trust root.

        Args:
            engines: all of `master`.
            master: as the model version names it; engines may run its very files.
            trust: whose signatures count.
        """
        if trust is None:
            return {}
        faults = {each.digest: self._fault(each, master, trust) for each in engines}
        return {digest: fault for digest, fault in faults.items() if fault}

    def _fault(self, engine: PublishedEngine, master: MasterRecord, trust: TrustRoot) -> str:
        payload = statement(engine.manifest, engine.proof, master)
        faults = []
        for keyid in trust.keyids:
            key = _signature_key(engine.manifest.key, payload, keyid)
            try:
                fault = trust.fault(self._records.read(key, Envelope), keyid, payload)
            except NotFoundError:
                continue
            except StoreError as error:
                fault = str(error)
            if not fault:
                return ""
            faults.append(fault)
        return "; ".join(faults) or self._without_signature(engine, trust)

    def _without_signature(self, engine: PublishedEngine, trust: TrustRoot) -> str:
        names = self._records.keys(_signatures_prefix(engine.manifest.key))
        keyids = ", ".join(keyid[:12] for keyid in trust.keyids)
        if any(keyid in name for name in names for keyid in trust.keyids):
            return (
                f"signed by a trusted key ({keyids}), but for another manifest, proof or master: "
                "one of them was changed since"
            )
        others = f"; {len(names)} signatures of other keys found" if names else ""
        command = worker_command(self._store.url, "sign", engine.digest[:12])
        return (
            f"not signed by a trusted key ({keyids}){others}; with SMELT_SIGNING_KEY set to the "
            f"PEM file of such a key, sign it by: {command}"
        )


def _signatures_prefix(key: BuildKey) -> str:
    return f"{engine_folder(key)}signatures/"


def _signature_key(key: BuildKey, payload: bytes, keyid: str) -> str:
    return f"{_signatures_prefix(key)}{hashlib.sha256(payload).hexdigest()}.{keyid}.json"
