"""Samples at rest: AES-256-GCM with the key of a file, as `openssl rand -hex 32` makes one.

What is sealed begins with a mark and a nonce. The nonce is made of key and content, so equal
content gives equal bytes, and a digest of them recognises what was published before.
"""

import hashlib
import hmac
from pathlib import Path

from services.contracts.errors import InvalidRequestError, SealedError

_MARK = b"smelt-sealed-1\n"
_NONCE_BYTES = 12
_KEY_BYTES = 32
_SETTING = "SMELT_SAMPLE_KEY (of replicas SMELT_REPLICA_SAMPLE_KEY)"


class SampleCipher:
    """Seals and opens samples with one key.

    Attributes:
        key_id: recognises the key, and tells nothing of it.
    """

    def __init__(self, path: Path) -> None:
        """Read the key; raises InvalidRequestError when the file has none."""
        try:
            self._key = bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            found = error.strerror if isinstance(error, OSError) else str(error)
            raise _no_key(path, f"{found}") from error
        if len(self._key) != _KEY_BYTES:
            raise _no_key(path, f"{len(self._key)} bytes")
        self.key_id = self.keyed_hash(b"key id")[:16]

    def keyed_hash(self, data: bytes) -> str:
        """A keyed hash (HMAC), in hex: a guessed value cannot be confirmed without the key."""
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()

    def sealed(self, data: bytes) -> bytes:
        """The content, encrypted and authenticated."""
        # Not at the top: processes that take no samples start without it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = hmac.new(self._key, b"nonce" + data, hashlib.sha256).digest()[:_NONCE_BYTES]
        return _MARK + nonce + AESGCM(self._key).encrypt(nonce, data, _MARK)

    def _opened(self, data: bytes, what: str) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        begin = len(_MARK) + _NONCE_BYTES
        try:
            return AESGCM(self._key).decrypt(data[len(_MARK) : begin], data[begin:], _MARK)
        except InvalidTag as error:
            raise SealedError(
                f"{what} cannot be opened: it was sealed with another key than {self.key_id}, or "
                f"was changed; name the right key's file in {_SETTING}"
            ) from error


def is_sealed(path: Path) -> bool:
    """Whether a file has to be opened before it is read."""
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


def opened_samples(data: bytes, cipher: SampleCipher | None, what: str) -> bytes:
    """What was sealed, or the bytes as they are where nothing sealed them.

    Args:
        data: as they are stored.
        cipher: None without a key.
        what: they are, for messages.

    Raises:
        SealedError: they are sealed, and the key is missing or another one.
    """
    if not data.startswith(_MARK):
        return data
    if cipher is None:
        raise SealedError(f"{what} is encrypted, and no key is given: name its file in {_SETTING}")
    return cipher._opened(data, what)  # noqa: SLF001 - of this module


def _no_key(path: Path, found: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{_SETTING}: {path}: found {found}; expected a file of {_KEY_BYTES} bytes in hex: openssl "
        f"rand -hex {_KEY_BYTES} > samples.key"
    )
