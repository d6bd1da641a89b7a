"""The controller process: `python -m services.controller`.

Its settings are environment variables with the prefix SMELT_CONTROLLER_; see `settings.py`.
SIGTERM and SIGINT end it with 0, and the replicas of its own Ray after they drained; those
of a cluster that it joined serve on. A wrong setting ends it with 2, a loop that ends with 1.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.process.interpreter import tune_for_serving
from services.contracts.process.lifetime import end_with_parent
from services.contracts.process.settings import read_settings
from services.contracts.registry.registry import Registry
from services.contracts.security.fleet_security import FleetTls, FleetTokens
from services.contracts.store.object_store import open_tested_store
from services.controller.api.fleet_control import FleetControl
from services.controller.api.fleet_port import listen, token_guards
from services.controller.api.fleet_state import FleetState
from services.controller.api.health import ControllerHealth
from services.controller.api.model_loading import Serving
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.build_reader import ViewReader
from services.controller.build.key_status import RetryPolicy
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.external.external_watch import ExternalWatch
from services.controller.loops import Loops
from services.controller.metrics.build_metrics import LatestView
from services.controller.metrics.controller_metrics import ControllerMetrics
from services.controller.page.page_app import PageApp
from services.controller.platform.cluster_platform import ClusterPlatform, open_platform
from services.controller.settings import ControllerSettings
from services.pb import fleet_v1_pb2_grpc as fleet_grpc
from services.telemetry.logs import configure_logging
from services.telemetry.ready import announce_ready

logger = logging.getLogger(__name__)

# A replica that vanishes without closing its socket (host lost) is noticed within about
# 4 s: a ping each 2 s, unanswered for 2 s. Gateways that reach it still go on with it.
_SERVER_OPTIONS = (
    # Two controllers on one port by mistake would share its replicas and gateways.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Replicas and gateways ping each 10 s: gRPC's default admits one ping in five minutes on
    # a quiet connection, and ends one that has more.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)


async def serve(settings: ControllerSettings) -> bool:
    """Run until SIGTERM or SIGINT; False if a loop ended before.

    Raises:
        InvalidRequestError: the store's URL is wrong, or a port is not available.
        StoreError: the store cannot be opened, or lies about conditional creates.
    """
    stop_requested = asyncio.Event()
    nodes_changed = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop_requested.set)
    metrics = ControllerMetrics(settings)
    store = metrics.measured(await asyncio.to_thread(open_tested_store, settings.store_url))
    registry = Registry(store, settings.cache_dir, settings.sample_key)
    state = FleetState(settings.store_url)
    here = await asyncio.to_thread(open_platform, settings, state, _from_any_thread(nodes_changed))
    tokens = FleetTokens.of(settings)
    guards = token_guards(tokens)
    server = grpc.aio.server(interceptors=guards, options=_SERVER_OPTIONS)
    address = _listen(server, settings.listen, FleetTls.of(settings))
    replica_args = _replica_args(settings, address, tokens)
    loops, latest = _loops(settings, registry, state, here, metrics, replica_args)
    serving = Serving(registry, state, loops, is_placing=here.replicas.is_placing)
    control = FleetControl(state, loops, serving, reattach_grace_s=settings.reattach_grace_s)
    fleet_grpc.add_FleetControlServicer_to_server(control, server)
    health = ControllerHealth(lambda: loops.last_sync_s)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await server.start()
    health_server = await serve_health(settings.health_listen, health)
    metrics_port = metrics.start(
        state,
        latest,
        store,
        lambda seen: PageApp(registry, seen, lambda: loops.last_sync_s, tokens),
    )
    # The facts of many models are what the collector would walk again and again.
    tune_for_serving()
    announce_ready(
        settings.ready_fd,
        {"address": address, "metrics_port": metrics_port, "pid": os.getpid()},
    )
    following = asyncio.create_task(_follow_nodes(nodes_changed, loops))
    is_stopped = await loops.run_until(stop_requested)
    logger.info("stopping")
    following.cancel()
    await asyncio.to_thread(here.replicas.stop)
    for close in here.close:
        await asyncio.to_thread(close)
    await server.stop(grace=1.0)
    await health_server.stop(grace=None)
    await metrics.stop()
    return is_stopped


def _loops(
    settings: ControllerSettings,
    registry: Registry,
    state: FleetState,
    here: ClusterPlatform,
    metrics: ControllerMetrics,
    replica_args: dict[str, Any],
) -> tuple[Loops, LatestView]:
    """The loops, and what was read last of the store."""
    deploying = ReconcileLoop(
        registry,
        here.nodes,
        state,
        here.replicas,
        replica_args,
        resync_s=settings.resync_s,
        withdraw_after_s=settings.withdraw_after_s,
        externals=ExternalWatch(
            state, settings.external_token_dir, apps=here.apps, runs_apps=settings.serve_apps
        ),
        recorder=metrics.recorder,
    )
    building = BuildLoop(
        registry,
        here.nodes,
        here.launcher,
        state,
        on_store_changed=deploying.enqueue,
        recorder=metrics.recorder,
        pace=BuildPace(resync_s=settings.resync_s),
    )
    if settings.builds:
        return Loops(deploying, building), lambda: building.latest
    reader = ViewReader(registry, RetryPolicy(), here.launcher.compiler)
    return Loops(deploying, None), lambda: (reader.read(here.nodes.pools(), ()), reader.moment)


def _from_any_thread(event: asyncio.Event) -> Callable[[], None]:
    event_loop = asyncio.get_running_loop()

    def set_soon() -> None:
        # asyncio's own events may be set in their loop's thread alone.
        event_loop.call_soon_threadsafe(event.set)

    return set_soon


async def _follow_nodes(changed: asyncio.Event, loops: Loops) -> None:
    """Enqueue a sync when nodes change, which may be before the loops are made."""
    while True:
        await changed.wait()
        changed.clear()
        loops.enqueue()


async def serve_health(address: str, health: ControllerHealth) -> grpc.aio.Server:
    """grpc.health alone, on a port of its own unless the address is "": probes have no TLS."""
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if address:
        _listen(server, address, None)
        await server.start()
    return server


def _listen(server: grpc.aio.Server, wanted: str, tls: FleetTls | None) -> str:
    host = wanted.rpartition(":")[0]
    try:
        return f"{host}:{listen(server, wanted, tls)}"
    except RuntimeError as error:
        raise InvalidRequestError(
            f"controller cannot listen on {wanted}: {error}; choose another "
            "SMELT_CONTROLLER_LISTEN, port 0 takes a free one"
        ) from error


def _replica_args(
    settings: ControllerSettings, address: str, tokens: FleetTokens | None
) -> dict[str, Any]:
    return {
        "store_url": settings.store_url,
        "cache_dir": str(settings.cache_dir),
        "controller_address": address,
        "socket_dir": str(settings.run_dir),
        "host": settings.replica_host,
        "num_threads": settings.replica_num_threads,
        # The files lie at the same place on every node; the token reaches those without its file.
        **settings.fleet_security,
        "fleet_token": tokens.newest if tokens else "",
    }


def main() -> int:
    """Read settings, set up logs, serve; the process's exit status."""
    configure_logging("controller")
    try:
        settings = read_settings(ControllerSettings)
        end_with_parent(settings.parent_pid, signal.SIGTERM)
        return 0 if asyncio.run(serve(settings)) else 1
    except SmeltError as error:
        logger.error("controller cannot serve: %s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
