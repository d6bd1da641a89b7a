"""Keys and envelopes: what is accepted as a key, what as a signature."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import BlobRef, MasterRecord, ProofOutcome
from services.contracts.security.provenance import Envelope, signed_bytes, statement
from services.contracts.security.signing import Signer, TrustRoot
from tests.documents import small_key, small_manifest, small_proof
from tests.signing_keys import KeyFiles, new_keys

PASSED = small_proof(ProofOutcome.PASSED)
BLOB = BlobRef(sha256="b" * 64, num_bytes=1)
MASTER = MasterRecord(digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=0)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return new_keys(tmp_path)


def test_a_signature_is_of_these_very_bytes(keys: KeyFiles) -> None:
    signer, trust = Signer(keys.private), TrustRoot(keys.public)
    signed = signer.sign(b"payload")
    assert trust.fault(signed, signer.keyid, b"payload") == ""
    assert "is wrong" in trust.fault(signed, signer.keyid, b"Payload")


def test_a_signature_of_another_key_does_not_count(keys: KeyFiles, tmp_path: Path) -> None:
    other = Signer(new_keys(tmp_path, "other").private)
    trust = TrustRoot(keys.public)
    assert "not signed by key" in trust.fault(other.sign(b"payload"), other.keyid, b"payload")
    ours = Signer(keys.private).keyid
    forged = other.sign(b"payload").model_copy(deep=True)
    forged = Envelope(
        payload_type=forged.payload_type,
        payload=forged.payload,
        signatures=(forged.signatures[0].model_copy(update={"keyid": ours}),),
    )
    assert "is wrong" in trust.fault(forged, ours, b"payload")


def test_several_keys_are_trusted_while_they_are_rotated(keys: KeyFiles, tmp_path: Path) -> None:
    new = new_keys(tmp_path, "new")
    both = tmp_path / "both.pem"
    both.write_bytes(b"old:\n" + keys.public.read_bytes() + b"new:\n" + new.public.read_bytes())
    trust = TrustRoot(both)
    for files in (keys, new):
        signer = Signer(files.private)
        assert trust.fault(signer.sign(b"x"), signer.keyid, b"x") == ""
    assert len(trust.keyids) == 2


@pytest.mark.parametrize("written", ["%%%", "\u00e9\u00e9\u00e9\u00e9"])
def test_a_signature_that_is_no_base64_is_wrong(keys: KeyFiles, written: str) -> None:
    signer = Signer(keys.private)
    document = json.loads(signer.sign(b"x").canonical_json())
    document["signatures"][0]["sig"] = written
    envelope = Envelope.from_json(json.dumps(document).encode())
    assert "is wrong" in TrustRoot(keys.public).fault(envelope, signer.keyid, b"x")
    assert not signer.has_signed(envelope.signatures[0], b"x")


@pytest.mark.parametrize("kind", ["private", "public"])
def test_what_is_no_key_is_refused_with_the_command_that_makes_one(
    tmp_path: Path, kind: str
) -> None:
    read = Signer if kind == "private" else TrustRoot
    path = tmp_path / "key.pem"
    for content in (b"", b"words", b"-----BEGIN PUBLIC KEY-----\nAA\n-----END PUBLIC KEY-----"):
        path.write_bytes(content)
        with pytest.raises(InvalidRequestError, match=r"key\.pem: .* wanted; .*openssl ecparam"):
            read(path)
    with pytest.raises(InvalidRequestError, match="No such file"):
        read(tmp_path / "missing.pem")


def test_another_curve_is_refused(tmp_path: Path) -> None:
    files = new_keys(tmp_path, curve=ec.SECP384R1())
    with pytest.raises(InvalidRequestError, match="P-256"):
        Signer(files.private)
    with pytest.raises(InvalidRequestError, match="P-256"):
        TrustRoot(files.public)


def test_the_envelope_is_what_dsse_readers_expect(keys: KeyFiles) -> None:
    # The example of DSSE's own protocol text.
    assert signed_bytes(b"hello world").endswith(b" 11 hello world")
    payload = statement(manifest := small_manifest(small_key()), PASSED, MASTER)
    document = json.loads(Signer(keys.private).sign(payload).canonical_json())
    assert set(document) == {"payloadType", "payload", "signatures"}
    assert document["payloadType"] == "application/vnd.in-toto+json"
    told = json.loads(base64.b64decode(document["payload"]))
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicate"]["runDetails"]["metadata"]["invocationId"] == manifest.key.digest()


def test_every_document_is_in_the_statement() -> None:
    manifest = small_manifest(small_key())
    first = statement(manifest, PASSED, MASTER)
    others = (
        statement(small_manifest(small_key(driver="1")), PASSED, MASTER),
        statement(small_manifest(small_key(), needs_master=True), PASSED, MASTER),
        statement(manifest, small_proof(ProofOutcome.FAILED), MASTER),
        statement(manifest, PASSED, MASTER.model_copy(update={"files": {"model.onnx": BLOB}})),
    )
    assert len({first, *others}) == 5
    assert statement(manifest, PASSED, MASTER) == first
