"""Keys: who signs engines and whom a process trusts; ECDSA on P-256 with SHA-256.

Keys are PEM files as openssl writes them:

    openssl ecparam -name prime256v1 -genkey -noout -out signing.pem
    openssl ec -in signing.pem -pubout -out trust.pem
"""

import base64
import hashlib
import re
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from services.contracts.errors import InvalidRequestError
from services.contracts.security.provenance import DsseSignature, Envelope, envelope, signed_bytes

_ALGORITHM = ec.ECDSA(hashes.SHA256())
_PUBLIC_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


class Signer:
    """Signs statements with one private key.

    Attributes:
        keyid: sha256 of the public key (DER, SubjectPublicKeyInfo), in hex.
    """

    def __init__(self, path: Path) -> None:
        """Read the private key; raises InvalidRequestError when the file is none for P-256."""
        try:
            key = load_pem_private_key(_read(path), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise _wrong(path, "an unencrypted private key", str(error)) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.public_key()):
            raise _wrong(path, "an ECDSA key on P-256 (prime256v1)", type(key).__name__)
        self._key = key
        self.keyid = _keyid(key.public_key())

    def sign(self, payload: bytes) -> Envelope:
        """The payload in an envelope with this key's signature."""
        return envelope(payload, self.keyid, self._key.sign(signed_bytes(payload), _ALGORITHM))

    def has_signed(self, signature: DsseSignature | None, payload: bytes) -> bool:
        """Whether a signature is this key's, of this very payload."""
        if signature is None or signature.keyid != self.keyid:
            return False
        return _is_signature(signature.sig, payload, self._key.public_key())


class TrustRoot:
    """The public keys whose signatures count; several while keys are rotated.

    Attributes:
        keyids: of all keys.
    """

    def __init__(self, path: Path) -> None:
        """Read all public keys of a PEM file; raises InvalidRequestError for any other."""
        self._keys: dict[str, ec.EllipticCurvePublicKey] = {}
        for block in _PUBLIC_KEY.findall(_read(path)):
            try:
                key = load_pem_public_key(block)
            except (ValueError, UnsupportedAlgorithm) as error:
                raise _wrong(path, "public keys", str(error)) from error
            if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_p256(key):
                raise _wrong(path, "ECDSA keys on P-256 (prime256v1)", type(key).__name__)
            self._keys[_keyid(key)] = key
        if not self._keys:
            raise _wrong(path, "at least one public key (-----BEGIN PUBLIC KEY-----)", "none")
        self.keyids = tuple(sorted(self._keys))

    def fault(self, signed: Envelope, keyid: str, payload: bytes) -> str:
        """Why an envelope is no trusted signature of this very payload; "" when it is one.

        Args:
            signed: as read from the store.
            keyid: of the signature that counts.
            payload: made by this process, never taken from the envelope.
        """
        signatures = [each.sig for each in signed.signatures if each.keyid == keyid]
        if keyid not in self._keys or not signatures:
            return f"it is not signed by key {keyid[:12]}"
        # Of the bytes that were made here; those in the envelope are for other readers.
        is_right = _is_signature(signatures[0], payload, self._keys[keyid])
        return "" if is_right else f"the signature of key {keyid[:12]} is wrong"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _wrong(path, "a PEM file", error.strerror or str(error)) from error


def _wrong(path: Path, wanted: str, found: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path}: {found} found, {wanted} wanted; make a key with: openssl ecparam -name "
        "prime256v1 -genkey -noout -out signing.pem, and its public half with: openssl ec -in "
        "signing.pem -pubout -out trust.pem"
    )


def _is_signature(sig: str, payload: bytes, key: ec.EllipticCurvePublicKey) -> bool:
    try:
        key.verify(base64.b64decode(sig, validate=True), signed_bytes(payload), _ALGORITHM)
    # ValueError: no base64; binascii's own is one, and letters beyond ASCII give a plain one.
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_p256(key: ec.EllipticCurvePublicKey) -> bool:
    return isinstance(key.curve, ec.SECP256R1)


def _keyid(key: ec.EllipticCurvePublicKey) -> str:
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()
