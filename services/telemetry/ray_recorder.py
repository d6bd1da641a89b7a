"""The catalogue bound to Ray's metrics: replicas, many of which share one node.

Ray's agent on the node exports them, so no replica opens a port. Inside a Serve replica,
Serve adds the labels deployment, replica and application.

Ray's own histogram costs microseconds for each observation and makes up the sum from the
middles of its buckets. So histograms are counted here, and `publish` sets their buckets, sum
and count as gauges under the names that Prometheus gives to them: queries see no difference.
A gauge that is not set anew within two export periods is dropped, so `publish` is to be called
more often.
"""

from collections.abc import Callable, Iterable
from typing import Any, assert_never

from services.telemetry.bucket_counts import BucketCounts
from services.telemetry.declared import DeclaredMetrics
from services.telemetry.metric import Metric, MetricKind
from services.telemetry.recorder import Observer


class RayRecorder:
    """Records through `ray.serve.metrics`; make it inside the replica that records."""

    num_forgotten = 0

    def __init__(self, metrics: Iterable[Metric]) -> None:
        declared = tuple(metrics)
        self._declared = DeclaredMetrics(declared)
        self._bound = {metric.name: _bound(metric) for metric in declared}

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter; see `Recorder.count`."""
        self._declared.check(metric, MetricKind.COUNTER, labels)
        # Ray refuses an increment of 0, which Prometheus allows.
        if amount > 0:
            self._bound[metric.name].inc(amount, tags=dict(labels))

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge; see `Recorder.set`."""
        self._declared.check(metric, MetricKind.GAUGE, labels)
        self._bound[metric.name].set(value, tags=dict(labels))

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram; see `Recorder.observe`."""
        self.observer(metric, **labels)(value)

    def adder(self, metric: Metric, **labels: str) -> Callable[[], None]:
        """What adds one to one series of a counter, its labels checked once."""
        self._declared.check(metric, MetricKind.COUNTER, labels)
        increment = self._bound[metric.name].inc
        return lambda: increment(1.0, dict(labels))

    def observer(self, metric: Metric, **labels: str) -> Observer:
        """What adds observations to one series of a histogram, its labels checked once."""
        self._declared.check(metric, MetricKind.HISTOGRAM, labels)
        histogram: _RayHistogram = self._bound[metric.name]
        return histogram.series(labels).observe

    def forget(self, **labels: str) -> None:
        """A replica serves one version: its series go with its process."""

    def publish(self) -> None:
        """Set what histograms have counted until now."""
        for bound in self._bound.values():
            if isinstance(bound, _RayHistogram):
                bound.publish()


class _RayHistogram:
    """A histogram as three gauges: buckets by `le`, sum and count."""

    def __init__(self, metric: Metric) -> None:
        from ray.serve.metrics import Gauge

        name = metric.name
        text = metric.help
        labels = metric.labels
        self._bounds = metric.buckets
        self._les = (*map(str, metric.buckets), "+Inf")
        self._bucket = Gauge(f"{name}_bucket", text, (*labels, "le"))
        self._sum = Gauge(f"{name}_sum", text, labels)
        self._count = Gauge(f"{name}_count", text, labels)
        self._series: dict[tuple[tuple[str, str], ...], BucketCounts] = {}

    def series(self, labels: dict[str, str]) -> BucketCounts:
        """The series with these labels."""
        key = tuple(sorted(labels.items()))
        return self._series.setdefault(key, BucketCounts(self._bounds))

    def publish(self) -> None:
        """Set the gauges of every series; its own dictionaries, as Ray may keep them."""
        for key, counts in list(self._series.items()):
            cumulative, total, _ = counts.snapshot()
            for le, count in zip(self._les, cumulative, strict=True):
                self._bucket.set(count, dict((*key, ("le", le))))
            self._sum.set(total, dict(key))
            self._count.set(cumulative[-1], dict(key))


def _bound(metric: Metric) -> Any:
    from ray.serve import metrics

    match metric.kind:
        case MetricKind.COUNTER:
            return metrics.Counter(metric.name, metric.help, metric.labels)
        case MetricKind.GAUGE:
            return metrics.Gauge(metric.name, metric.help, metric.labels)
        case MetricKind.HISTOGRAM:
            return _RayHistogram(metric)
        case _:
            assert_never(metric.kind)
