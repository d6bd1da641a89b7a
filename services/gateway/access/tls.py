"""TLS of the public port, with certificates that are rotated while it serves."""

import logging
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificates

from services.contracts.errors import InvalidRequestError
from services.contracts.watched_file import WatchedFile

logger = logging.getLogger(__name__)

_SPKI = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files of the gateway.

    Attributes:
        cert: its certificate, then those that signed it.
        key: its private key, without a pass phrase.
        client_ca: who signs clients' certificates; clients without one are turned away. None
            asks clients for none.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class RotatingTls:
    """Server credentials that follow the files: each new connection gets the newest ones."""

    def __init__(self, files: TlsFiles, period_s: float = 1.0) -> None:
        """Read the files.

        Raises:
            InvalidRequestError: one cannot be read, is no PEM, or the key is another
                certificate's.
        """
        paths = [path for path in (files.cert, files.key, files.client_ca) if path]
        self._files = [WatchedFile(path, period_s) for path in paths]
        self._configuration = self._read()
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._newest,  # type: ignore[arg-type] # gRPC documents None: nothing is new
            require_client_authentication=files.client_ca is not None,
        )

    def _newest(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, from a thread of its own, at each new connection."""
        if not any(file.has_changed() for file in self._files):
            return None
        try:
            configuration = self._read()
        except InvalidRequestError as error:
            # Half of a rotation: the other file comes, and is a change again.
            logger.warning("the TLS certificate stays as it was: %s", error)
            return None
        logger.info("the TLS certificate was read again")
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        cert, key, *client_ca = (_bytes(file) for file in self._files)
        _check_pair(cert, key, self._files[0].path, self._files[1].path)
        for pem, file in zip(client_ca, self._files[2:], strict=True):
            _check_certificates(pem, file.path)
        return grpc.ssl_server_certificate_configuration(
            [(key, cert)], root_certificates=client_ca[0] if client_ca else None
        )


def _bytes(file: WatchedFile) -> bytes:
    try:
        return file.read()
    except OSError as error:
        raise InvalidRequestError(f"TLS file {file.path} cannot be read: {error}") from error


def _check_pair(cert: bytes, key: bytes, cert_path: Path, key_path: Path) -> None:
    """Look at them first: gRPC takes any bytes, and then fails each connection in silence."""
    leaf = _check_certificates(cert, cert_path)
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(
            f"TLS key {key_path}: not a PEM private key without a pass phrase: {error}"
        ) from error
    if private.public_key().public_bytes(*_SPKI) != leaf:
        raise InvalidRequestError(
            f"TLS key {key_path} is not the key of the certificate in {cert_path}"
        )


def _check_certificates(pem: bytes, path: Path) -> bytes:
    """The public key of the first certificate."""
    try:
        return load_pem_x509_certificates(pem)[0].public_key().public_bytes(*_SPKI)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(
            f"TLS certificate {path}: no PEM certificates: {error}"
        ) from error
