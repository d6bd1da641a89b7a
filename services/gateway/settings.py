"""Settings of the gateway process, read once in `__main__` and passed down."""

import socket
from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

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
        overload_as_unavailable: answer overload as Triton does, with UNAVAILABLE.
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
    overload_as_unavailable: bool = False
    is_port_shared: bool = False
    reattach_grace_s: float = Field(default=30.0, ge=0)
    drain_notice_s: float = Field(default=0.0, ge=0)
    drain_grace_s: float = Field(default=10.0, ge=0)
    log_level: str = Field(default="INFO", pattern="(?i)^(debug|info|warning|error)$")
