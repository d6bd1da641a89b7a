"""The processes of a local fleet, with their settings."""

from services.cli.fleet.child_process import ProcessSpec
from services.cli.fleet.gateway_workers import default_workers
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings
from services.contracts.security.fleet_security import is_loopback
from services.replica.ray_worker.environment import node_environment

# The default of a Ray of one host since 2.60; processes that join it need the same mode.
_RAY_AUTHENTICATION = {"RAY_AUTH_MODE": "token"}


def _own_ray() -> dict[str, str]:
    return {**_RAY_AUTHENTICATION, **node_environment()}


def ray_spec(options: UpOptions) -> ProcessSpec:
    """The Ray of this host, where the fleet joins no other."""
    return ProcessSpec(
        module="services.controller.ray_node",
        env_prefix="SMELT_RAY_NODE_",
        settings={"generation_override": options.generation},
        defaults=_own_ray(),
    )


def controller_spec(
    settings: CliSettings, options: UpOptions, *, ray_address: str, listen: str
) -> ProcessSpec:
    """The controller.

    Args:
        settings: of the commands.
        options: of `smelt up`.
        ray_address: of the GCS of the Ray to place replicas on.
        listen: `host:port` for FleetControl.
    """
    return ProcessSpec(
        module="services.controller",
        env_prefix="SMELT_CONTROLLER_",
        settings={
            "store_url": settings.store_url,
            "cache_dir": settings.cache_dir,
            "run_dir": settings.run_dir,
            "ray_address": ray_address,
            "listen": listen,
            "metrics_host": options.host,
            # Each replica's host has an address of its own.
            "replica_host": "127.0.0.1" if is_loopback(options.host) else "0.0.0.0",  # noqa: S104
            **settings.fleet_security,
        },
        # It deploys for the nodes of that Ray, and has what they have.
        defaults={} if options.ray_address else _own_ray(),
    )


def gateway_spec(settings: CliSettings, options: UpOptions, controller: str) -> ProcessSpec:
    """The gateway's module and settings.

    Args:
        settings: TLS and token of the fleet.
        options: of `smelt up`: ports, host and number of workers.
        controller: `host:port` that the gateway watches.
    """
    workers = options.num_gateway_workers
    http_port = options.http_port
    return ProcessSpec(
        module="services.gateway",
        env_prefix="SMELT_GATEWAY_",
        settings={
            "controller": controller,
            "grpc_host": options.host,
            "grpc_port": options.grpc_port,
            "metrics_host": options.host,
            "metrics_port": options.metrics_port,
            **({} if workers is None else {"workers": workers}),
            **({} if http_port is None else {"http_port": http_port}),
            **settings.fleet_security,
        },
        defaults={"SMELT_GATEWAY_WORKERS": str(default_workers())},
    )
