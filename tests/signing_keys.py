"""Key files for tests, as openssl writes them."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


@dataclass(frozen=True)
class KeyFiles:
    """A private key and its public half, each in a PEM file."""

    private: Path
    public: Path


def new_keys(
    folder: Path, name: str = "signing", curve: ec.EllipticCurve | None = None
) -> KeyFiles:
    """A new pair; by default on P-256."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    files = KeyFiles(folder / f"{name}.pem", folder / f"{name}.pub.pem")
    pem = Encoding.PEM
    files.private.write_bytes(
        key.private_bytes(pem, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    files.public.write_bytes(key.public_key().public_bytes(pem, PublicFormat.SubjectPublicKeyInfo))
    return files
