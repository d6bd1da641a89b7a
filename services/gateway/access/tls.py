"""TLS of the public port, with certificates that are rotated while it serves."""

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from services.contracts.errors import InvalidRequestError
from services.contracts.security.watched_file import WatchedFile, WatchedFiles

logger = logging.getLogger(__name__)

_SPKI = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
HTTP2 = "h2"
HTTP1 = "http/1.1"
# What HTTP/2 allows of TLS 1.2 (RFC 9113, appendix A); TLS 1.3 has no others.
_TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files of the gateway.

    Attributes:
        cert: its certificate, then those that signed it.
        key: its private key, without a pass phrase.
        client_ca: who signs clients' certificates; clients without one are turned away. None
            requires none of clients.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class RotatingTls:
    """A server's TLS that follows the files: each new connection gets the newest ones.

    Attributes:
        context: for an event loop's `create_server`.
    """

    def __init__(self, files: TlsFiles, period_s: float = 1.0, *, protocol: str = HTTP2) -> None:
        """Read the files.

        Args:
            files: of the certificate.
            period_s: they are read again at most once in so many seconds.
            protocol: what is agreed on by ALPN; clients have to offer HTTP2, but not HTTP1.

        Raises:
            InvalidRequestError: one cannot be read, is no PEM, or the key is another
                certificate's.
        """
        self._protocol = protocol
        paths = [path for path in (files.cert, files.key, files.client_ca) if path]
        self._files = WatchedFiles(paths, period_s, "the TLS certificate", logger)
        self._take()
        self.context = _RotatingContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.newest = self._newest

    def _newest(self) -> ssl.SSLContext:
        self._files.renew(self._take)
        return self._served

    def _take(self) -> None:
        files = self._files.all
        cert, key, *client_ca = (_bytes(file) for file in files)
        chain = _certificates(cert, files[0].path)
        private = _key_of(chain[0], key, files[0].path, files[1].path)
        authorities = [
            authority
            for pem, file in zip(client_ca, files[2:], strict=True)
            for authority in _certificates(pem, file.path)
        ]
        try:
            self._served = _context_of(chain, private, authorities, self._protocol)
        except OSError as error:
            raise InvalidRequestError(
                f"TLS certificate {files[0].path} cannot be used: {error}"
            ) from error


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """TLS of gRPC's own server, which reads the files' content with each new connection."""

    def read() -> grpc.ServerCertificateConfiguration:
        authorities = files.client_ca.read_bytes() if files.client_ca else None
        pair = files.key.read_bytes(), files.cert.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

    return grpc.dynamic_ssl_server_credentials(
        read(), read, require_client_authentication=files.client_ca is not None
    )


class _RotatingContext(ssl.SSLContext):
    """Gives each connection the newest context; what is set on itself is not used.

    Exchanging the context at a client's greeting (`sni_callback`) would not do: sessions would
    still be the first context's, and one made before a rotation skips what has changed.
    """

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """One connection's TLS; event loops call it as each one begins."""
        return self.newest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class _Http2Object(ssl.SSLObject):
    """One connection's TLS, which is closed when the client does not offer HTTP/2."""

    def do_handshake(self) -> None:
        """As any, and then look at what was agreed on: OpenSSL goes on without."""
        super().do_handshake()
        if self.selected_alpn_protocol() != HTTP2:
            raise ssl.SSLError(f"the client does not offer HTTP/2 (ALPN {HTTP2})")


def _context_of(
    chain: list[x509.Certificate],
    key: PrivateKeyTypes,
    authorities: list[x509.Certificate],
    protocol: str,
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS12_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol])
    if protocol == HTTP2:
        context.sslobject_class = _Http2Object
    # Once more as PEM: what was looked at is what is used, whatever the files are by now.
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with _private_file(pem + b"".join(c.public_bytes(Encoding.PEM) for c in chain)) as path:
        context.load_cert_chain(path)
    if authorities:
        _verify_clients(context, authorities)
    return context


def _verify_clients(context: ssl.SSLContext, authorities: list[x509.Certificate]) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    # An authority that another one signed is trusted too; its root need not be in the file.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(
        cadata=b"".join(c.public_bytes(Encoding.DER) for c in authorities)
    )
    # A ticket would be taken, and renewed, after the client's certificate has run out.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """The path of a file in memory, this process's alone: `ssl` takes certificates by path."""
    with os.fdopen(os.memfd_create("tls"), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _bytes(file: WatchedFile) -> bytes:
    try:
        return file.read()
    except OSError as error:
        raise InvalidRequestError(f"TLS file {file.path} cannot be read: {error}") from error


def _key_of(leaf: x509.Certificate, key: bytes, cert_path: Path, key_path: Path) -> PrivateKeyTypes:
    try:
        # Its primes are not proved again: that takes up to a fifth of a second, and all wait.
        private = load_pem_private_key(key, password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(
            f"TLS key {key_path}: not a PEM private key without a pass phrase: {error}"
        ) from error
    if private.public_key().public_bytes(*_SPKI) != leaf.public_key().public_bytes(*_SPKI):
        raise InvalidRequestError(
            f"TLS key {key_path} is not the key of the certificate in {cert_path}"
        )
    return private


def _certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(pem)
        certificates[0].public_key()  # of a kind that is known
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(
            f"TLS certificate {path}: no PEM certificates: {error}"
        ) from error
    return certificates
