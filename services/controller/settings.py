"""Settings of the controller process, read once in `__main__` and passed down."""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from services.contracts.security.fleet_security import FleetSecuritySettings, is_loopback

# A Ray whose address is a line of standard input.
ADDRESS_ON_INPUT: Final = "-"


class ControllerSettings(FleetSecuritySettings):
    """Environment variables with the prefix SMELT_CONTROLLER_, or keyword arguments.

    Attributes:
        store_url: artifact store: a folder, or s3://, gs://, az://.
        cache_dir: local copies of masters and engines, shared by replicas of this host.
        run_dir: sockets of this fleet and a link to the logs of its Ray; short, because a socket
            path holds 107 bytes.
        listen: `host:port` of FleetControl; port 0 takes a free one. Beyond loopback it needs a
            token: what may attach to it as a replica gets requests.
        health_listen: `host:port` of grpc.health alone, in the clear and without a token, for
            probes that know neither; "" leaves it on `listen` only.
        metrics_host, metrics_port: where Prometheus scrapes; port 0 takes a free one.
        ready_fd: inherited pipe that gets one JSON line once FleetControl listens; -1 for none.
        parent_pid: this process ends when that parent does; 0 for none.
        ray_address: `host:port` of the Ray cluster to join; `auto` finds one of this host, `-`
            reads it from standard input, where it comes when a Ray that starts meanwhile is up.
        replica_app: import path of the function that makes a Serve application, as in a
            Ray Serve config file; the controller never imports the replica's code itself.
        placement: `ray` deploys to the Ray of `ray_address`; `rayservice` leaves that to a
            RayService on Kubernetes, looks at Node objects and builds in Jobs.
        kubernetes_namespace: of the RayService and the Jobs; "" takes the pod's own.
        job_template: file of a batch/v1 Job for builds on Kubernetes.
        compiler_image: for those Jobs; "" takes the template's.
        fleet_file: description of generations that the fleet will have; see `platform.fleet_file`.
        builds: build and prove what nodes lack; without it engines come by `smelt build` alone.
        build_arguments: more options of `python -m compiler_worker build`, as on a shell.
        replica_host: interface of the replicas' TCP data ports; loopback unless gateways run on
            other hosts.
        withdraw_after_s: how long a generation may have no node before its replicas go.
        reattach_grace_s: how long gateways may go on with a replica whose stream to the
            controller was lost; it needs about 20 s to notice that and attach again.
        replica_num_threads: threads of a CPU engine in each replica; 0 leaves it to the engine.
        sample_key: file of the key of encrypted samples, as the replicas have it; needed where a
            recipe has `calibration: traffic`.
        external_token_dir: tokens for external servers, as the gateways have them.
        serve_apps: run external models that are Ray Serve applications, or on Kubernetes
            Deployments: code that those choose who may publish models.
        resync_s: seconds after which the store is read again without an event.
    """

    env_prefix = "SMELT_CONTROLLER_"

    store_url: str
    cache_dir: Path
    run_dir: Path
    listen: str = "127.0.0.1:0"
    health_listen: str = ""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)
    ready_fd: int = -1
    parent_pid: int = 0
    ray_address: str = "auto"
    replica_app: str = "services.replica.app:application"
    placement: Literal["ray", "rayservice"] = "ray"
    kubernetes_namespace: str = ""
    job_template: Path | None = None
    compiler_image: str = ""
    fleet_file: Path | None = None
    builds: bool = True
    build_arguments: str = ""
    replica_num_threads: int = 0
    replica_host: str = "127.0.0.1"
    withdraw_after_s: float = 10.0
    reattach_grace_s: float = Field(default=30.0, ge=0)
    sample_key: Path | None = None
    external_token_dir: Path | None = None
    serve_apps: bool = False
    resync_s: float = 15.0

    @model_validator(mode="after")
    def _has_token_beyond_loopback(self) -> Self:
        host = self.listen.rpartition(":")[0]
        if not is_loopback(host) and not (self.fleet_token_file or self.fleet_token):
            raise ValueError(
                f"the control plane would listen on {host} without a token, so that every host "
                "could attach replicas to it; name a file with one, made by `openssl rand -hex "
                "32`: SMELT_CONTROLLER_FLEET_TOKEN_FILE, and the same for gateways and replicas "
                "(`smelt up` makes one)"
            )
        return self
