"""Settings of the gateway process, read once in `__main__` and passed down."""

import socket
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.gateway.access.tls import TlsFiles

PREFIX: Final = "SMELT_GATEWAY_"
# What tritonclient allows both ways: the largest length that gRPC can carry.
MAX_MESSAGE_BYTES: Final = 2**31 - 1


class GatewaySettings(BaseSettings):
    """Environment variables with the prefix SMELT_GATEWAY_, or keyword arguments.

    Attributes:
        grpc_host, grpc_port: where clients connect; port 0 takes a free one.
        metrics_host, metrics_port: where Prometheus scrapes; port 0 takes a free one.
        controller: `host:port` of FleetControl.
        ready_fd: inherited pipe that gets one JSON line once clients can connect; -1 for none.
        parent_pid: this process ends when that parent does; 0 for none.
        gateway_id: how the controller's log names this process.
        host_id: equal to a replica's when both see the same unix sockets.
        max_message_bytes: largest request and answer.
        max_in_flight: requests at once, over all models; more are answered overloaded.
        response_cache_bytes: room for answers of models whose recipe says `response_cache`.
        overload_as_unavailable: answer overload as Triton does, with UNAVAILABLE.
        access_file: who may ask what, by bearer token (YAML, `access/document.py`); it is read
            again when it changes. None lets everybody ask.
        tls_cert_file, tls_key_file: PEM; the port then takes TLS alone. Read again when they
            change.
        tls_client_ca_file: who signs clients' certificates (mTLS); None asks clients for none.
        is_port_shared: let several gateways of a host listen on one port.
        reattach_grace_s: seconds that replicas have to attach to a restarted controller,
            before the gateway forgets those that its predecessor listed.
        drain_notice_s: seconds between NOT_SERVING and the first refusal, for load balancers.
        drain_grace_s: seconds that requests in flight may take after SIGTERM.
        log_level: least level that is logged.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    grpc_host: str = "127.0.0.1"
    grpc_port: int = Field(default=8001, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=8002, ge=0, le=65535)
    controller: str = "127.0.0.1:8003"
    ready_fd: int = -1
    parent_pid: int = 0
    gateway_id: str = Field(default_factory=socket.gethostname)
    host_id: str = Field(default_factory=socket.gethostname)
    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1, le=MAX_MESSAGE_BYTES)
    max_in_flight: int = Field(default=1024, ge=1)
    response_cache_bytes: int = Field(default=64 << 20, ge=0)
    overload_as_unavailable: bool = False
    access_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None
    is_port_shared: bool = False
    reattach_grace_s: float = Field(default=30.0, ge=0)
    drain_notice_s: float = Field(default=0.0, ge=0)
    drain_grace_s: float = Field(default=10.0, ge=0)
    log_level: str = Field(default="INFO", pattern="(?i)^(debug|info|warning|error)$")

    @model_validator(mode="after")
    def _has_whole_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS needs both tls_cert_file and tls_key_file, got one of them")
        if self.tls_client_ca_file and not self.tls_cert_file:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file beside it")
        return self

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS; None without it."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(
            cert=self.tls_cert_file, key=self.tls_key_file, client_ca=self.tls_client_ca_file
        )
