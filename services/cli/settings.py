"""Settings of the command line, read once in `main`."""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic import Field, model_validator

from services.contracts.security.fleet_security import FleetSecuritySettings

if TYPE_CHECKING:  # it needs a library of cryptography
    from services.contracts.security.signing import TrustRoot

ANOTHER_HOME: Final = "SMELT_HOME=FOLDER names another home"
_TOKEN_FILE: Final = "fleet_token"  # noqa: S105 - of a file


class CliSettings(FleetSecuritySettings):
    """Environment variables with the prefix SMELT_.

    The fleet's files are for RPCs to controllers, and `smelt up` gives them to its processes.

    Attributes:
        home: folder of the local store, caches, logs and the running fleet's file.
        fleet_token_file: unless it is named, and no other controller is, the one of this home that
            `smelt up` makes.
        store_url: artifact store; "" becomes the folder `store` in home.
        start_timeout_s: longest wait for Ray, controller or gateway to announce that it is ready.
        trust_root: public keys whose signatures count, as the replicas have it (`smelt why`).
        sample_key: file of the key of encrypted samples, as the replicas have it.
        controller: `host:port` of a controller elsewhere, which status, why, rebuild, models
            add and models remove then speak to; "" is this host's fleet.
        token: bearer token that the commands send to gateways; "" sends none.
        tls_ca_file: who signed gateways' certificates (PEM); None talks in the clear.
        tls_cert_file, tls_key_file: the commands' own certificate, where a gateway asks for one.
        scrape_interval_s: how often the Prometheus of `smelt up --observe` asks for figures.
        oci_plain_http: OCI registries beyond this host that are spoken to without TLS, as
            `host:port`, separated by commas.
        ready_fd: inherited pipe that `smelt up --detach` waits on; -1 for none.
    """

    env_prefix = "SMELT_"

    home: Path = Path("~/.smelt")
    store_url: str = ""
    start_timeout_s: float = 120.0
    trust_root: Path | None = None
    sample_key: Path | None = None
    controller: str = ""
    token: str = ""
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    scrape_interval_s: float = Field(default=5.0, ge=0.1)
    oci_plain_http: str = ""
    ready_fd: int = -1

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        self.home = self.home.expanduser().absolute()
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("expected tls_cert_file and tls_key_file together, got one of them")
        self.store_url = self.store_url or str(self.home / "store")
        # Not for a controller elsewhere, which would be sent the token of this host's fleet.
        if not (self.fleet_token_file or self.fleet_token or self.controller):
            own = self.home / _TOKEN_FILE
            # Without an error where the home cannot be looked into.
            self.fleet_token_file = own if os.access(own, os.F_OK) else None
        return self

    def with_fleet_token(self) -> Self:
        """These settings with the control plane's token, which is made where none is named."""
        if self.fleet_token_file or self.fleet_token:
            return self
        path = self.home / _TOKEN_FILE
        self.home.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a file that was written in part would be taken for a token.
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600, exist_ok=False)
        partial.write_text(f"{secrets.token_hex(32)}\n")
        partial.replace(path)
        return self.model_copy(update={"fleet_token_file": path})

    @property
    def trust(self) -> "TrustRoot | None":
        """Whose signatures count; None where none are asked for."""
        if self.trust_root is None:
            return None
        from services.contracts.security.signing import TrustRoot

        return TrustRoot(self.trust_root)

    @property
    def cache_dir(self) -> Path:
        """Verified local copies of masters and engines."""
        return self.home / "cache"

    @property
    def run_dir(self) -> Path:
        """Logs, sockets and the running fleet's file; a fleet makes it (`make_run_dir`)."""
        return self.home / "run"
