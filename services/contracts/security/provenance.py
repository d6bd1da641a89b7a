"""What is signed about an engine: an in-toto statement in a DSSE envelope.

The statement follows SLSA provenance v1 (slsa.dev/spec/v1.0/provenance): its subjects are the
engine's files, its parameters the build key, its dependencies the master's files, and its
byproducts the manifest and the proof. It is a pure function of these documents, so a verifier
makes it anew and compares bytes; no foreign statement is ever parsed.

The envelope follows DSSE v1.0.2 (github.com/secure-systems-lab/dsse), one for each signer.
"""

import base64
import hashlib
from collections.abc import Mapping

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from services.contracts.model.document import Document, canonical_json
from services.contracts.model.manifest import BlobRef, EngineManifest, MasterRecord, Proof

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
_BUILD_TYPE = "smelt.dev/engine-build/v1"
_BUILDER = "smelt.dev/compiler-worker"


class DsseSignature(Document):
    """One signature of an envelope: who signed, and base64 of the signature."""

    keyid: str
    sig: str


class Envelope(Document):
    """A signed payload as DSSE writes it; `payload` is base64."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True
    )

    payload_type: str
    payload: str
    signatures: tuple[DsseSignature, ...]


def statement(manifest: EngineManifest, proof: Proof, master: MasterRecord) -> bytes:
    """The in-toto statement (SLSA provenance) that is signed about an engine.

    Args:
        manifest: with its files.
        proof: of the engine.
        master: that it was built from.

    Returns:
        Canonical JSON: equal arguments give equal bytes.
    """
    key = manifest.key
    predicate = {
        "buildDefinition": {
            "buildType": _BUILD_TYPE,
            "externalParameters": key.model_dump(mode="json"),
            "resolvedDependencies": _resources(master.files),
        },
        "runDetails": {
            "builder": {"id": _BUILDER},
            "metadata": {"invocationId": key.digest(), "finishedOn": manifest.created_at},
            "byproducts": [
                _resource("manifest.json", manifest.canonical_json()),
                _resource("proof.json", proof.canonical_json()),
            ],
        },
    }
    return canonical_json(
        {
            "_type": _STATEMENT_TYPE,
            # An engine without files of its own is its manifest: it runs the master itself.
            "subject": _resources(manifest.files)
            or [_resource("manifest.json", manifest.canonical_json())],
            "predicateType": _PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def signed_bytes(payload: bytes) -> bytes:
    """What is signed of a payload: DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, keyid: str, signature: bytes) -> Envelope:
    """A DSSE envelope with one signature.

    Args:
        payload: the signed bytes, not yet in base64.
        keyid: of the public key, in hex.
        signature: in DER.
    """
    return Envelope(
        payload_type=PAYLOAD_TYPE,
        payload=base64.b64encode(payload).decode(),
        signatures=(DsseSignature(keyid=keyid, sig=base64.b64encode(signature).decode()),),
    )


def _resources(files: Mapping[str, BlobRef]) -> list[dict[str, object]]:
    return [{"name": name, "digest": {"sha256": ref.sha256}} for name, ref in sorted(files.items())]


def _resource(name: str, data: bytes) -> dict[str, object]:
    return {"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}}
