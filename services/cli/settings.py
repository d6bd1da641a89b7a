"""Settings of the command line, read once in `main`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from services.contracts.fleet_security import FleetSecuritySettings


class CliSettings(FleetSecuritySettings):
    """Environment variables with the prefix SMELT_.

    The fleet's files are for talks with controllers, and `smelt up` gives them to its processes.

    Attributes:
        home: folder of the local store, caches, logs and the running fleet's file.
        store_url: artifact store; "" becomes the folder `store` in home.
        start_timeout_s: longest wait for controller or gateway to say that it is ready.
        trust_root: public keys whose signatures count, as the replicas have it (`smelt why`).
        controller: `host:port` of a controller elsewhere, which status, why, rebuild, models
            add and models remove then speak to; "" is this host's fleet.
        token: bearer token that the commands send to gateways; "" sends none.
        tls_ca_file: who signed gateways' certificates (PEM); None talks in the clear.
        tls_cert_file, tls_key_file: the commands' own certificate, where a gateway asks for one.
        scrape_interval_s: how often the Prometheus of `smelt up --observe` asks for figures.
        ready_fd: inherited pipe that `smelt up --detach` waits on; -1 for none.
    """

    model_config = SettingsConfigDict(env_prefix="SMELT_")

    home: Path = Path("~/.smelt")
    store_url: str = ""
    start_timeout_s: float = 120.0
    trust_root: Path | None = None
    controller: str = ""
    token: str = ""
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    scrape_interval_s: float = Field(default=5.0, ge=0.1)
    ready_fd: int = -1

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        self.home = self.home.expanduser().absolute()
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("expected tls_cert_file and tls_key_file together, got one of them")
        self.store_url = self.store_url or str(self.home / "store")
        return self

    @property
    def cache_dir(self) -> Path:
        """Verified local copies of masters and engines."""
        return self.home / "cache"

    @property
    def run_dir(self) -> Path:
        """Logs, sockets and the running fleet's file, for this user alone; made when absent."""
        path = self.home / "run"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
