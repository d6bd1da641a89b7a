"""The gateway process: `python -m services.gateway`.

Its settings are environment variables with the prefix SMELT_GATEWAY_; see `settings.py`.
SIGTERM and SIGINT drain it and end it with 0; a wrong setting ends it with 2.
"""

import asyncio
import logging
import os
import signal
import sys

import uvloop
from prometheus_client import CollectorRegistry

from services.contracts.errors import InvalidRequestError
from services.contracts.interpreter import tune_for_serving
from services.contracts.lifetime import end_with_parent
from services.contracts.settings import read_settings
from services.gateway.allocator import keep_freed_memory
from services.gateway.server import GatewayServer
from services.gateway.settings import GatewaySettings
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.logs import configure_logging
from services.telemetry.prometheus_recorder import (
    MetricsServer,
    PrometheusRecorder,
    serve_metrics,
)
from services.telemetry.ready import announce_ready

logger = logging.getLogger(__name__)


def main() -> int:
    """Run until told to stop; the process's exit status."""
    try:
        settings = read_settings(GatewaySettings)
        configure_logging("gateway", settings.log_level)
        end_with_parent(settings.parent_pid, signal.SIGTERM)
        keep_freed_memory()
        uvloop.run(_run(settings))
    except InvalidRequestError as error:
        print(f"smelt gateway: {error}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 2
    return 0


async def _run(settings: GatewaySettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(GATEWAY_METRICS, registry)
    metrics = _serve_metrics(settings, registry)
    try:
        server = GatewayServer(settings, recorder)
        await server.start()
        facts = {"grpc_port": server.port, "metrics_port": metrics.port, "pid": os.getpid()}
        tune_for_serving()
        announce_ready(settings.ready_fd, facts)
        logger.info("gateway is ready", extra=facts)
        try:
            await server.serve_until(stop)
        finally:
            logger.info("gateway drains")
            await server.stop()
    finally:
        metrics.close()


def _serve_metrics(settings: GatewaySettings, registry: CollectorRegistry) -> MetricsServer:
    try:
        return serve_metrics(settings.metrics_port, registry, address=settings.metrics_host)
    except OSError as error:
        raise InvalidRequestError(
            f"gateway cannot serve metrics on {settings.metrics_host}:{settings.metrics_port}: "
            f"{error}; choose another port with `smelt up --metrics-port` or "
            "SMELT_GATEWAY_METRICS_PORT, 0 takes a free one"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
