"""Settings of the gateway process, read once in `__main__` and passed down."""

import json
import socket
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from services.contracts.security.fleet_security import FleetSecuritySettings
from services.contracts.transport.busy_poll import BUSY_POLL_S
from services.gateway.access.tls import TlsFiles
from services.gateway.routing.outliers import OutlierRules
from services.gateway.upstream.external_connection import ExternalLimits
from services.gateway.workers.limits import MAX_WORKERS

PREFIX: Final = "SMELT_GATEWAY_"
# What tritonclient allows both ways: the largest length that gRPC can carry.
MAX_MESSAGE_BYTES: Final = 2**31 - 1


def _decoded(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


class GatewaySettings(FleetSecuritySettings):
    """Environment variables with the prefix SMELT_GATEWAY_, or keyword arguments.

    Attributes:
        grpc_host, grpc_port: where clients connect; port 0 takes a free one.
        http_port: where clients of HTTP connect on the same host, with the same TLS and tokens:
            KServe v2 and OpenAI paths (`http/README.md`). Triton has 8000 there; 0 takes a free
            one, and None is no HTTP.
        server: "smelt" is the HTTP/2 server of `services/grpc_server`; "grpc" is grpc.aio, for
            incidents: see README.md for what it lacks.
        metrics_host, metrics_port: where Prometheus scrapes; port 0 takes a free one.
        controller: `host:port` of FleetControl.
        ready_fd: inherited pipe that gets one JSON line once clients can connect; -1 for none.
        parent_pid: this process ends when that parent does; 0 for none.
        gateway_id: how the controller's log names this process.
        server_name: as ServerMetadata has it; some clients of Triton want "triton".
        host_id: equal to a replica's when both see the same unix sockets.
        max_message_bytes: largest request and answer, of external servers too. Requests of other
            methods than inference have 1 MiB at most.
        max_decompressed_bytes: largest request that came compressed, once it is unpacked; never
            more than max_message_bytes.
        max_upload_bytes: large requests (above 4 MiB) at once, from their first bytes until they
            are answered; clients of others wait. A single one may be larger. What is sent
            compressed counts as what it becomes. A quarter as much, at least 32 MiB, may be held
            of other requests that are incomplete or wait; more of these are refused. A quarter,
            at least 64 MiB, of gRPC answers may wait for clients to read them; beyond, the slowest
            readers are refused more, or their connections end for others. A number holds for each
            worker; None is half of the memory of this host or container for all.
        max_streams: requests and streams at once on one connection; clients hold more back.
        max_request_age_s: seconds in which a request must have come whole.
        max_connections: at once, to each port; more are closed. Three quarters of the files that
            the process may open, at most.
        max_connection_idle_s: seconds without a request after which a connection is ended; 0 is
            never.
        max_connection_age_s: seconds, a tenth more or less, after which a connection takes no new
            requests and its client connects anew, so that clients spread over gateways that came
            later; 0 is never.
        request_memory_bytes: memory in which large requests lie while replicas of this host read
            them, in place of a copy for each. Each worker has its own; pages are taken as they are
            used, and kept. At least 17 MiB, of which it is a multiple; 0 for none.
        busy_poll_s: seconds that the gateway looks for an answer, and then for the next request,
            without sleeping, where a caller sends one after the other and both came within that
            before. Takes up to a processor; 0 always sleeps, as does a gateway that may use
            fewer than eight, by the host or its container's quota.
        max_in_flight: requests at once, over all models; more are answered overloaded, and so are
            requests beyond half of max_upload_bytes, of those that are not large.
        max_in_flight_per_model: requests at once for each model; None bounds only the sum.
        model_max_in_flight: the same for single models: {"NAME": 8}.
        hold_s: seconds that a request waits in all while the last replica of its version is
            replaced, or an on-demand model is loaded; 0 answers UNAVAILABLE at once. Half of
            max_in_flight and a quarter of max_upload_bytes may wait. Any other version that never
            served here is not waited for. So long a batch of a request to /v1/ waits for room too.
        external_token_dir: folder of bearer tokens for external servers, a file each, by the names
            that `smelt models add --token` gave them.
        external_first_byte_s: seconds that an external server may take to begin an answer, which
            for a completion without `stream` is all of its work.
        external_idle_s: seconds without a byte after which an answer that has begun is aborted.
        session_key: metadata whose value names a session; its requests go to one replica as
            long as that can take them. "" for none.
        slow_start_s: seconds in which a replica that became ready grows into its share; 0 for none.
        eject_after_failures: faults in a row after which a replica is left out for a while; 0
            leaves none out.
        eject_slower_than: a replica is left out that takes this many times as long as its like;
            0 leaves none out.
        eject_s: how long at first; each time twice as long.
        response_cache_bytes: room for answers of models whose recipe says `response_cache`.
        shared_memory: let clients of this host keep tensors in system shared memory. Who may
            register a region can read and write any shared memory object of this process's user;
            a region that is registered is its caller's alone.
        admin: take RepositoryModelLoad, RepositoryModelUnload, LogSettings and TraceSetting from
            clients. With an access file their tokens need the verb `load` for the first two and
            `admin` for settings, which are those of all workers.
        overload_as_unavailable: answer overload as Triton does, with UNAVAILABLE.
        access_file: which callers may call what, by bearer token (YAML,
            `access/access_file.py`); it is read again when it changes. None allows all callers.
        tls_cert_file, tls_key_file: PEM; the port then takes TLS alone. Read again when they
            change.
        tls_client_ca_file: who signs clients' certificates (mTLS); None requires none of clients.
        access_log: file that gets one line of JSON for each request, `-` for standard output; ""
            for none. A file that was moved away is opened again.
        access_log_share: of the requests that went well; all others are always written.
        triton_metrics: export Triton's nv_inference_* too, for boards that were made for it.
        is_port_shared: let several gateways of a host listen on one port.
        workers: processes that serve on the port; each has the bounds and the cache of a gateway.
        keeper_fd: inherited socket to the process above the workers, for them alone; -1 for none.
        reattach_grace_s: seconds that replicas have to attach to a restarted controller,
            before the gateway forgets those that its predecessor listed.
        drain_notice_s: seconds between NOT_SERVING and the first refusal, for load balancers.
        drain_grace_s: seconds that requests in flight may take after SIGTERM.
        log_level: least level that is logged.
    """

    model_config = ConfigDict(frozen=True)
    env_prefix = PREFIX

    grpc_host: str = "127.0.0.1"
    grpc_port: int = Field(default=8001, ge=0, le=65535)
    http_port: int | None = Field(default=None, ge=0, le=65535)
    server: Literal["smelt", "grpc"] = "smelt"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=8002, ge=0, le=65535)
    controller: str = "127.0.0.1:8003"
    ready_fd: int = -1
    parent_pid: int = 0
    gateway_id: str = Field(default_factory=socket.gethostname)
    server_name: str = Field(default="smelt", min_length=1, max_length=255)
    host_id: str = Field(default_factory=socket.gethostname)
    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1, le=MAX_MESSAGE_BYTES)
    max_decompressed_bytes: int = Field(default=256 << 20, ge=1, le=MAX_MESSAGE_BYTES)
    max_upload_bytes: int | None = Field(default=None, ge=1)
    max_streams: int = Field(default=1024, ge=1, le=MAX_MESSAGE_BYTES)
    max_request_age_s: float = Field(default=600.0, gt=0)
    max_connections: int = Field(default=10_000, ge=1)
    max_connection_idle_s: float = Field(default=3600.0, ge=0)
    max_connection_age_s: float = Field(default=3600.0, ge=0)
    request_memory_bytes: int = Field(default=256 << 20, ge=0, le=1 << 40)
    busy_poll_s: float = Field(default=BUSY_POLL_S, ge=0, le=0.01)
    max_in_flight: int = Field(default=8192, ge=1)
    max_in_flight_per_model: int | None = Field(default=None, ge=1)
    model_max_in_flight: Annotated[
        dict[str, Annotated[int, Field(ge=1)]], BeforeValidator(_decoded)
    ] = Field(default_factory=dict)
    hold_s: float = Field(default=30.0, ge=0)
    external_token_dir: Path | None = None
    external_first_byte_s: float = Field(default=600.0, gt=0)
    external_idle_s: float = Field(default=120.0, gt=0)
    session_key: str = Field(default="smelt-session", pattern="^[a-z0-9_.-]*$")
    slow_start_s: float = Field(default=10.0, ge=0)
    eject_after_failures: int = Field(default=5, ge=0)
    eject_slower_than: float = Field(default=4.0, ge=0)
    eject_s: float = Field(default=5.0, gt=0)
    response_cache_bytes: int = Field(default=64 << 20, ge=0)
    shared_memory: bool = False
    admin: bool = False
    overload_as_unavailable: bool = False
    access_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None
    access_log: str = ""
    access_log_share: float = Field(default=1.0, ge=0, le=1)
    triton_metrics: bool = False
    is_port_shared: bool = False
    workers: int = Field(default=1, ge=1, le=MAX_WORKERS)
    keeper_fd: int = -1
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

    @model_validator(mode="after")
    def _has_one_list_of_regions(self) -> Self:
        if self.shared_memory and self.is_port_shared and self.keeper_fd < 0:
            raise ValueError(
                "shared_memory cannot go with is_port_shared: a region is known to the gateway "
                "that it was registered with, and the next request may reach another one; for "
                "several processes on one port set workers, which share their regions"
            )
        return self

    @property
    def outlier_rules(self) -> OutlierRules:
        """What makes a replica an outlier."""
        return OutlierRules(
            max_failures=self.eject_after_failures,
            max_slowness=self.eject_slower_than,
            first_s=self.eject_s,
        )

    @property
    def external_limits(self) -> ExternalLimits:
        """What external servers are held to."""
        return ExternalLimits(
            first_byte_s=self.external_first_byte_s,
            idle_s=self.external_idle_s,
            max_answer_bytes=self.max_message_bytes,
            token_dir=self.external_token_dir,
        )

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS; None without it."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(
            cert=self.tls_cert_file, key=self.tls_key_file, client_ca=self.tls_client_ca_file
        )
