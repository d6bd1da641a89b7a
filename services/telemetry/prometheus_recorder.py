"""The catalogue bound to prometheus_client: gateway, controller and compiler."""

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Thread
from typing import assert_never
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from services.telemetry.catalog import Metric, MetricKind
from services.telemetry.declared import DeclaredMetrics


class PrometheusRecorder:
    """Records into a registry of prometheus_client; safe to share between threads."""

    def __init__(self, metrics: Iterable[Metric], registry: CollectorRegistry) -> None:
        declared = tuple(metrics)
        self._declared = DeclaredMetrics(declared)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in declared:
            self._bind(metric, registry)

    def _bind(self, metric: Metric, registry: CollectorRegistry) -> None:
        name, text, labels = metric.name, metric.help, metric.labels
        match metric.kind:
            case MetricKind.COUNTER:
                self._counters[name] = Counter(name, text, labels, registry=registry)
            case MetricKind.GAUGE:
                self._gauges[name] = Gauge(name, text, labels, registry=registry)
            case MetricKind.HISTOGRAM:
                self._histograms[name] = Histogram(
                    name, text, labels, registry=registry, buckets=metric.buckets
                )
            case _:
                assert_never(metric.kind)

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._declared.check(metric, MetricKind.COUNTER, labels)
        counter = self._counters[metric.name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._declared.check(metric, MetricKind.GAUGE, labels)
        gauge = self._gauges[metric.name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        self._declared.check(metric, MetricKind.HISTOGRAM, labels)
        histogram = self._histograms[metric.name]
        (histogram.labels(**labels) if labels else histogram).observe(value)


@dataclass(frozen=True, kw_only=True)
class MetricsServer:
    """A running /metrics endpoint.

    Attributes:
        port: where it listens; the one chosen by the system when 0 was asked for.
    """

    port: int
    _server: WSGIServer
    _thread: Thread

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(
    port: int, registry: CollectorRegistry, *, address: str = "127.0.0.1"
) -> MetricsServer:
    """Serve a registry over HTTP from a thread; loopback unless an address is given.

    Raises:
        OSError: the port is taken.
    """
    # Every counter and histogram would carry a second series with its birth time.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    server, thread = start_http_server(port, addr=address, registry=registry)
    return MetricsServer(port=server.server_port, _server=server, _thread=thread)
