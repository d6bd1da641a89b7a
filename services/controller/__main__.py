"""The controller process: `python -m services.controller`.

Its settings are environment variables with the prefix SMELT_CONTROLLER_; see `settings.py`.
SIGTERM and SIGINT drain the replicas and end it with 0; a wrong setting ends it with 2.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Any

import grpc

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.lifetime import end_with_parent
from services.contracts.object_store import open_tested_store
from services.contracts.registry import Registry
from services.contracts.settings import read_settings
from services.controller.fleet_control import FleetControl
from services.controller.fleet_state import FleetState
from services.controller.reconcile import ReconcileLoop
from services.controller.replica_fleet import RayServeFleet
from services.controller.settings import ControllerSettings
from services.pb import fleet_v1_pb2_grpc as fleet_grpc
from services.telemetry.logs import configure_logging
from services.telemetry.ready import announce_ready

logger = logging.getLogger(__name__)

# A replica that vanishes without closing its socket (host lost) is noticed within about
# 4 s: a ping each 2 s, unanswered for 2 s.
_SERVER_OPTIONS = (
    # Two controllers on one port by mistake would share its replicas and gateways.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)


async def serve(settings: ControllerSettings) -> None:
    """Run until SIGTERM, SIGINT or a Shutdown call; replicas drain before it returns.

    Raises:
        InvalidRequestError: the store's URL is wrong, or the port cannot be had.
        StoreError: the store cannot be opened, or lies about conditional creates.
    """
    stop_requested = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop_requested.set)
    store = await asyncio.to_thread(open_tested_store, settings.store_url)
    registry = Registry(store, settings.cache_dir)
    state = FleetState(settings.store_url, os.getpid())
    replicas = RayServeFleet(settings.ray_address, settings.ray_num_cpus, settings.replica_app)
    # Ray forks; a child forked while gRPC runs here may end before it becomes its program,
    # and Ray then waits in vain. So gRPC begins after Ray has started.
    await asyncio.to_thread(replicas.start)
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    address = _listen(server, settings.listen)
    loop = ReconcileLoop(
        registry, state, replicas, _replica_args(settings, address), settings.resync_s
    )
    fleet_grpc.add_FleetControlServicer_to_server(FleetControl(state, loop, stop_requested), server)
    await server.start()
    announce_ready(settings.ready_fd, {"address": address, "pid": os.getpid()})
    reconciling = asyncio.create_task(loop.run())
    await stop_requested.wait()
    logger.info("stopping: replicas drain")
    reconciling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reconciling
    await asyncio.to_thread(replicas.stop)
    await server.stop(grace=1.0)


def _listen(server: grpc.aio.Server, wanted: str) -> str:
    host = wanted.rpartition(":")[0]
    try:
        return f"{host}:{server.add_insecure_port(wanted)}"
    except RuntimeError as error:
        raise InvalidRequestError(
            f"controller cannot listen on {wanted}: {error}; choose another "
            "SMELT_CONTROLLER_LISTEN, port 0 takes a free one"
        ) from error


def _replica_args(settings: ControllerSettings, address: str) -> dict[str, Any]:
    return {
        "store_url": settings.store_url,
        "cache_dir": str(settings.cache_dir),
        "controller_address": address,
        "socket_dir": str(settings.run_dir),
        "generation_override": settings.generation_override,
        "num_threads": settings.replica_num_threads,
    }


def main() -> int:
    """Read settings, set up logs, serve; the process's exit status."""
    configure_logging("controller")
    try:
        settings = read_settings(ControllerSettings)
        end_with_parent(settings.parent_pid, signal.SIGTERM)
        asyncio.run(serve(settings))
    except SmeltError as error:
        logger.error("controller cannot serve: %s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
