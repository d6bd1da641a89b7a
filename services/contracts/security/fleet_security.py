"""How the fleet's own processes authenticate each other: one authority's certificates, one token.

Settings of every process (`SMELT_GATEWAY_FLEET_CERT_FILE` and so on) name the files. They are
read again when they change, so that certificates and tokens are rotated while all serve.
"""

import hashlib
import hmac
import logging
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import ProcessSettings
from services.contracts.security.watched_file import Complaint, WatchedFile, WatchedFiles

logger = logging.getLogger(__name__)

_LOOPBACK_HOSTS = ("localhost", "::1", "[::1]")


class FleetSecuritySettings(ProcessSettings):
    """The part of a process's settings by which the fleet's processes authenticate each other.

    Attributes:
        fleet_cert_file, fleet_key_file, fleet_ca_file: PEM: this process's certificate with its
            key, and the authority that signed those of all the fleet, and no other. With
            them its processes use TLS alone, and only to those with such a certificate.
            Read again when they change.
        fleet_token_file: tokens of the control plane, one a line: the first is sent with each
            call, each is accepted. Read again when it changes.
        fleet_token: the token itself, used where that file is absent: the controller gives it to
            replicas of hosts that do not have the file.
        fleet_server_name: the name in the controller's certificate; "" is that of its address.
    """

    fleet_cert_file: Path | None = None
    fleet_key_file: Path | None = None
    fleet_ca_file: Path | None = None
    fleet_token_file: Path | None = None
    fleet_token: str = Field(default="", repr=False)
    fleet_server_name: str = ""

    @field_validator(
        "fleet_cert_file", "fleet_key_file", "fleet_ca_file", "fleet_token_file", mode="after"
    )
    @classmethod
    def _is_absolute(cls, path: Path | None) -> Path | None:
        """They are handed on to processes that have another working folder."""
        return path and path.expanduser().absolute()

    @model_validator(mode="after")
    def _has_whole_fleet_tls(self) -> Self:
        files = (self.fleet_cert_file, self.fleet_key_file, self.fleet_ca_file)
        if any(files) and not all(files):
            raise ValueError(
                "the fleet's TLS needs fleet_cert_file, fleet_key_file and fleet_ca_file, got "
                f"{sum(file is not None for file in files)} of them"
            )
        return self

    @property
    def fleet_security(self) -> dict[str, object]:
        """Those of these settings that are made, as another process of the fleet gets them."""
        names = set(FleetSecuritySettings.model_fields)
        return self.model_dump(mode="json", include=names, exclude_defaults=True)


class FleetTls:
    """TLS contexts of this process, always of the newest files that fit together.

    Both ends show certificates, and each must be signed by the fleet's authority. Names are not
    looked at: replicas come and go under any address, and their tokens identify them.
    """

    def __init__(self, cert: Path, key: Path, ca: Path, period_s: float = 1.0) -> None:
        """Read the files, and again when they change.

        Args:
            cert: chain of certificates that this process shows, in PEM.
            key: its private key, in PEM.
            ca: certificate of the fleet's authority, in PEM.
            period_s: least time between two looks at the files.

        Raises:
            InvalidRequestError: one cannot be read, is no PEM, or the key is another
                certificate's.
        """
        self._files = WatchedFiles((cert, key, ca), period_s, "the fleet's certificate", logger)
        self._take()

    @classmethod
    def of(cls, settings: FleetSecuritySettings) -> Self | None:
        """That of a process's settings; None where the fleet uses plain text."""
        cert = settings.fleet_cert_file
        key = settings.fleet_key_file
        ca = settings.fleet_ca_file
        return cls(cert, key, ca) if cert and key and ca else None

    def server_context(self) -> ssl.SSLContext:
        """For the next connection that comes."""
        self._files.renew(self._take)
        return self._server

    def client_context(self) -> ssl.SSLContext:
        """For the next connection to open."""
        self._files.renew(self._take)
        return self._client

    def pems(self) -> tuple[bytes, bytes, bytes]:
        """Certificate, key and authority, for libraries with a TLS of their own."""
        self._files.renew(self._take)
        return self._pems

    def _take(self) -> None:
        # Before OpenSSL reads them: what changes from here on is a change.
        cert, key, ca = (_bytes(file) for file in self._files.all)
        server = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        client = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        # All at once: the ends of a process must not differ.
        self._server = server
        self._client = client
        self._pems = (cert, key, ca)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        cert, key, ca = (file.path for file in self._files.all)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            # Without a pass phrase given, OpenSSL would ask for it on the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        except OSError as error:
            raise _unusable(f"certificate {cert} with key {key}", error) from error
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            raise _unusable(f"authority {ca}", error) from error
        return context


class FleetTokens:
    """The control plane's tokens: of a file, which is read again when it changes, or one given."""

    def __init__(self, path: Path | None, period_s: float = 1.0, *, given: str = "") -> None:
        """Read the file.

        Args:
            path: one token on each line; None where one is given.
            period_s: least time between two looks at the file.
            given: the only token that counts without a file.

        Raises:
            InvalidRequestError: it cannot be read, or has no token.
        """
        self._file = WatchedFile(path, period_s) if path else None
        self._complaint = Complaint(
            partial(logger.warning, "the fleet's tokens stay as they were: %s")
        )
        self._tokens = _tokens_in(self._file) if self._file else (given,)

    @classmethod
    def of(cls, settings: FleetSecuritySettings) -> Self | None:
        """Those of a process's settings; None without a token."""
        path = settings.fleet_token_file
        given = settings.fleet_token
        if path and (path.exists() or not given):
            return cls(path)
        return cls(None, given=given) if given else None

    @property
    def all(self) -> tuple[str, ...]:
        """Those that are accepted."""
        if self._file and self._file.has_changed():
            try:
                self._tokens = _tokens_in(self._file)
            except InvalidRequestError as error:
                self._complaint.make(str(error))
            else:
                self._complaint.withdraw()
                logger.info("the fleet's tokens were read again")
        return self._tokens

    @property
    def newest(self) -> str:
        """The one that this process sends."""
        return self.all[0]

    def admit(self, authorization: str, form: Callable[[str], str] = str) -> bool:
        """Whether a header has one of them, in a form that is made of it: `Bearer TOKEN`."""
        given = authorization.encode(errors="replace")
        # All are compared, so that the time does not show which one was nearly right.
        found = [hmac.compare_digest(given, f"Bearer {form(t)}".encode()) for t in self.all]
        return any(found)


def page_token(fleet_token: str) -> str:
    """What opens the controller's page, and nothing else: a browser needs no more than to read.

    The fleet's token cannot be found from it, and it changes with that.
    """
    return hmac.new(fleet_token.encode(), b"smelt page", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this host can connect to a port of that interface."""
    return host in _LOOPBACK_HOSTS or host.startswith("127.")


def warn_in_the_clear(what: str, host: str) -> None:
    """Warn of a port, by its name, that hosts beyond loopback can reach and that takes no TLS."""
    if not is_loopback(host):
        logger.warning(
            "%s listens on %s in the clear: anyone on the network can read it; give the "
            "fleet's processes fleet_cert_file, fleet_key_file and fleet_ca_file",
            what,
            host,
        )


def _tokens_in(file: WatchedFile) -> tuple[str, ...]:
    try:
        tokens = tuple(_bytes(file).decode("ascii").split())
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"fleet token file {file.path}: expected ASCII words: {error}"
        ) from error
    if not tokens:
        raise InvalidRequestError(
            f"fleet token file {file.path} is empty: expected a token a line, as of "
            "`openssl rand -hex 32`"
        )
    return tokens


def _bytes(file: WatchedFile) -> bytes:
    try:
        return file.read()
    except OSError as error:
        raise InvalidRequestError(f"fleet file {file.path} cannot be read: {error}") from error


def _unusable(what: str, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(
        f"the fleet's {what} cannot be used: {error}; expected PEM, and the key of that certificate"
    )
