"""The gateway process: `python -m services.gateway [--workers N]`.

Its settings are environment variables with the prefix SMELT_GATEWAY_; see `settings.py`.
SIGTERM and SIGINT drain it and end it with 0; a wrong setting ends it with 2. With several
workers this process serves no requests: it keeps them running and shows what they count.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys

import uvloop
from prometheus_client import CollectorRegistry

from services.contracts.errors import InvalidRequestError
from services.contracts.process.interpreter import tune_for_serving
from services.contracts.process.lifetime import end_with_parent
from services.contracts.process.settings import read_settings
from services.gateway.allocator import keep_freed_memory
from services.gateway.open_files import allow_most_files
from services.gateway.server import GatewayServer
from services.gateway.settings import GatewaySettings
from services.gateway.triton_metrics import typed_as_counters
from services.gateway.workers.keeper_link import KeeperLink
from services.gateway.workers.supervisor import Workers
from services.gateway.workers.worker_metrics import WorkerMetrics
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.logs import configure_logging
from services.telemetry.prometheus_recorder import (
    MetricsServer,
    PrometheusRecorder,
    serve_metrics,
)
from services.telemetry.ready import announce_ready
from services.telemetry.tracing import TracingSettings, tracing_from_settings

logger = logging.getLogger(__name__)


def main() -> int:
    """Run until a signal asks to stop; the process's exit status."""
    try:
        settings = read_settings(GatewaySettings, **_given())
        configure_logging("gateway", settings.log_level)
        end_with_parent(settings.parent_pid, signal.SIGTERM)
        allow_most_files()
        if settings.workers > 1:
            asyncio.run(_run_workers(settings))
            return 0
        keep_freed_memory()
        uvloop.run(_run(settings))
    except InvalidRequestError as error:
        print(f"smelt gateway: {error}", file=sys.stderr)  # noqa: T201 - for the operator who started it
        return 2
    return 0


def _given() -> dict[str, int]:
    """Settings of the command line, which win over the environment."""
    parser = argparse.ArgumentParser(prog="python -m services.gateway")
    parser.add_argument("--workers", type=int, help="processes that share the port")
    given = parser.parse_args()
    return {} if given.workers is None else {"workers": given.workers}


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _run_workers(settings: GatewaySettings) -> None:
    trace_share = read_settings(TracingSettings).share
    stop = _stop_event()
    workers = Workers(settings, trace_share)
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(workers.each))
    metrics = _serve_metrics(settings, registry)
    facts = {
        "grpc_port": workers.port,
        **({} if settings.http_port is None else {"http_port": workers.http_port}),
        "metrics_port": metrics.port,
        "pid": os.getpid(),
        "num_workers": settings.workers,
    }

    def report_ready() -> None:
        announce_ready(settings.ready_fd, facts)
        logger.info("gateway is ready with %d workers", settings.workers, extra=facts)

    try:
        await workers.run(stop, report_ready)
    finally:
        metrics.close()


async def _run(settings: GatewaySettings) -> None:
    stop = _stop_event()
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(GATEWAY_METRICS, registry)
    metrics = _serve_metrics(settings, registry)
    tracing = tracing_from_settings(read_settings(TracingSettings), "smelt-gateway")
    keeper = KeeperLink(settings.keeper_fd) if settings.keeper_fd >= 0 else None
    try:
        server = GatewayServer(settings, recorder, tracing, keeper)
        if server.triton_metrics:
            registry.register(server.triton_metrics)
        await server.start()
        facts = {
            "grpc_port": server.port,
            **({} if settings.http_port is None else {"http_port": server.http_port}),
            "metrics_port": metrics.port,
            "pid": os.getpid(),
            "num_workers": 1,
        }
        tune_for_serving()
        announce_ready(settings.ready_fd, facts)
        logger.info("gateway is ready", extra=facts)
        try:
            await server.serve_until(stop)
        finally:
            logger.info("gateway drains")
            await server.stop()
    finally:
        if tracing:
            # Blocks until the last spans are sent.
            await asyncio.to_thread(tracing.close)
        metrics.close()


def _serve_metrics(settings: GatewaySettings, registry: CollectorRegistry) -> MetricsServer:
    # A worker's page is for the process that started it, whose parser refuses such counters.
    is_typed = settings.triton_metrics and settings.keeper_fd < 0
    try:
        return serve_metrics(
            settings.metrics_port,
            registry,
            address=settings.metrics_host,
            rewrite=typed_as_counters if is_typed else None,
        )
    except OSError as error:
        raise InvalidRequestError(
            f"gateway cannot serve metrics on {settings.metrics_host}:{settings.metrics_port}: "
            f"{error}; choose another port with `smelt up --metrics-port` or "
            "SMELT_GATEWAY_METRICS_PORT, 0 takes a free one"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
