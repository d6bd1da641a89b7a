"""Certificates for tests: an authority and what it signs, in PEM files."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1.

    Attributes:
        cert: what others trust it by.
        subject, public_key: what stands in that.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.subject, self.public_key = _name(name), self._key.public_key()
        self.cert = folder / f"{name}.crt"
        self.vouch_for(self)

    def vouch_for(self, other: "Authority") -> None:
        """Write another authority's certificate anew, signed by this one."""
        basics = x509.BasicConstraints(ca=True, path_length=None)
        built = self._builder(other.subject, other.public_key)
        signed = built.add_extension(basics, critical=True).sign(self._key, hashes.SHA256())
        other.cert.write_bytes(signed.public_bytes(Encoding.PEM))

    def sign(self, name: str, files: CertificateFiles | None = None) -> CertificateFiles:
        """A new key and its certificate; written over `files` when those are given."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        built = self._builder(_name(name), key.public_key()).add_extension(names, critical=False)
        certificate = built.sign(self._key, hashes.SHA256())
        folder = self._folder
        files = files or CertificateFiles(folder / f"{name}.crt", folder / f"{name}.key")
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
        files.key.write_bytes(pem)
        return files

    def _builder(
        self, name: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=1))
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
