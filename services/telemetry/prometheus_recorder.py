"""The catalogue bound to prometheus_client: gateway, controller and compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, assert_never
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from services.telemetry import bucket_counts
from services.telemetry.bucket_counts import BucketCounts, BucketSnapshot
from services.telemetry.declared import DeclaredMetrics
from services.telemetry.metric import Metric, MetricKind
from services.telemetry.recorder import Observer

_Bucket = tuple[str, float] | tuple[str, float, Exemplar]

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

METRICS_PATH: Final = "/metrics"


class PrometheusRecorder:
    """Records into a registry of prometheus_client; safe to share between threads.

    Attributes:
        num_forgotten: grows with each `forget`.
    """

    def __init__(self, metrics: Iterable[Metric], registry: CollectorRegistry) -> None:
        declared = tuple(metrics)
        self._declared = DeclaredMetrics(declared)
        self._bound = {metric.name: _bound(metric, registry) for metric in declared}
        # Checking labels and looking a series up costs more than recording into it.
        self._series_by_labels: dict[tuple[object, ...], Any] = {}
        self.num_forgotten = 0

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter; see `Recorder.count`."""
        self._series(metric, MetricKind.COUNTER, labels).inc(amount)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge; see `Recorder.set`."""
        self._series(metric, MetricKind.GAUGE, labels).set(value)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram; see `Recorder.observe`."""
        self._series(metric, MetricKind.HISTOGRAM, labels).observe(value)

    def adder(self, metric: Metric, **labels: str) -> Callable[[], None]:
        """What adds one to one series of a counter."""
        add: Callable[[], None] = self._series(metric, MetricKind.COUNTER, labels).inc
        return add

    def observer(self, metric: Metric, **labels: str) -> Observer:
        """What adds observations to one series of a histogram."""
        observe: Observer = self._series(metric, MetricKind.HISTOGRAM, labels).observe
        return observe

    def forget(self, **labels: str) -> None:
        """Drop all series that have these labels, of every metric that has all of them."""
        wanted = labels.items()
        known = self._series_by_labels
        self._series_by_labels = {key: s for key, s in known.items() if not wanted <= set(key[2:])}
        for name, bound in self._bound.items():
            if labels.keys() <= set(self._declared.labels(name)):
                bound.remove_by_labels(labels)
        self.num_forgotten += 1

    def publish(self) -> None:
        """Nothing: a scrape fetches what is kept here."""

    def _series(self, metric: Metric, kind: MetricKind, labels: dict[str, str]) -> Any:
        key = (metric.name, kind, *labels.items())
        series = self._series_by_labels.get(key)
        if series is None:
            self._declared.check(metric, kind, labels)
            bound = self._bound[metric.name]
            # prometheus_client raises on labels() of a metric without labels.
            is_plain = not labels and metric.kind is not MetricKind.HISTOGRAM
            series = bound if is_plain else bound.labels(**labels)
            self._series_by_labels[key] = series
        return series


def _bound(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | HistogramCollector:
    name = metric.name
    text = metric.help
    labels = metric.labels
    match metric.kind:
        case MetricKind.COUNTER:
            return Counter(name, text, labels, registry=registry)
        case MetricKind.GAUGE:
            return Gauge(name, text, labels, registry=registry)
        case MetricKind.HISTOGRAM:
            collector = HistogramCollector(metric)
            registry.register(collector)
            return collector
        case _:
            assert_never(metric.kind)


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
    port: int,
    registry: CollectorRegistry,
    *,
    address: str = "127.0.0.1",
    rewrite: Callable[[bytes], bytes] | None = None,
    elsewhere: WSGIApplication | None = None,
) -> MetricsServer:
    """Serve a registry over HTTP from a thread; loopback unless an address is given.

    Args:
        port: 0 takes a free one.
        registry: what is served.
        address: to listen on.
        rewrite: given each page, returns what is sent; such pages are not compressed.
        elsewhere: answers at all other paths; None: nothing is there.

    Raises:
        OSError: the port is taken.
    """
    # Every counter and histogram would carry a second series with its birth time.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    server, thread = start_http_server(port, addr=address, registry=registry)
    # Only afterwards: start_http_server makes the page itself, and takes no other.
    server.set_app(_only_metrics(server.get_app(), rewrite, elsewhere or _nothing))
    return MetricsServer(port=server.server_port, _server=server, _thread=thread)


def _nothing(_: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"nothing is here; metrics are at {METRICS_PATH}\n".encode()]


def _only_metrics(
    page: WSGIApplication | None,
    rewrite: Callable[[bytes], bytes] | None,
    elsewhere: WSGIApplication,
) -> WSGIApplication:
    """The page at its own path; prometheus_client serves it at each, so that wrong probes pass."""
    assert page is not None

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != METRICS_PATH:
            return elsewhere(environ, start_response)
        if rewrite is None:
            return page(environ, start_response)
        # Else prometheus_client may answer with gzip, which cannot be rewritten.
        environ.pop("HTTP_ACCEPT_ENCODING", None)
        return [rewrite(part) for part in page(environ, start_response)]

    return serve


class HistogramCollector(Collector):
    """All series of one histogram; a scrape that asks for OpenMetrics gets exemplars too."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        # As prometheus_client spells bounds itself: queries match `le` as text. `+Inf` has to be
        # the last, as the family takes its count from there.
        self._bounds = (*map(floatToGoString, metric.buckets), "+Inf")
        self._series: dict[tuple[str, ...], BucketCounts] = {}

    def labels(self, **labels: str) -> BucketCounts:
        """The series with these labels."""
        key = tuple(labels[name] for name in self._metric.labels)
        return self._series.setdefault(key, BucketCounts(self._metric.buckets))

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Drop the series that have these labels."""
        at = {self._metric.labels.index(name): value for name, value in labels.items()}
        for key in list(self._series):
            if all(key[place] == value for place, value in at.items()):
                del self._series[key]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family with what was observed until now."""
        metric = self._metric
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        # A copy: a scrape runs in a thread of its own, while requests add series.
        for key, counts in list(self._series.items()):
            snapshot = counts.snapshot()
            family.add_metric(key, self._buckets(snapshot), snapshot.total)
        yield family

    def _buckets(self, snapshot: BucketSnapshot) -> list[_Bucket]:
        known = snapshot.exemplars
        return [
            (bound, count, _exemplar(known[at])) if at in known else (bound, count)
            for at, (bound, count) in enumerate(zip(self._bounds, snapshot.cumulative, strict=True))
        ]


def _exemplar(known: bucket_counts.Exemplar) -> Exemplar:
    return Exemplar({"trace_id": known.trace_id}, known.value, known.time_s)
