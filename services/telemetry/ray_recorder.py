"""The catalogue bound to Ray's metrics: replicas, many of which share one node.

Ray's agent on the node exports them, so no replica opens a port. Inside a Serve replica,
Serve adds the labels deployment, replica and application by itself.

Of a histogram, Ray carries the counts of its buckets alone and makes up the sum from their
middles: what needs a true sum or mean is a counter beside it. A gauge that is not set anew
within two export periods is dropped.
"""

from collections.abc import Callable, Iterable
from typing import Any, assert_never

from services.telemetry.catalog import Metric, MetricKind
from services.telemetry.declared import DeclaredMetrics


class RayRecorder:
    """Records through `ray.serve.metrics`; make it inside the replica that records."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        declared = tuple(metrics)
        self._declared = DeclaredMetrics(declared)
        self._bound = {metric.name: _bound(metric) for metric in declared}

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._declared.check(metric, MetricKind.COUNTER, labels)
        # Ray refuses an increment of 0, which Prometheus allows.
        if amount > 0:
            self._bound[metric.name].inc(amount, tags=dict(labels))

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._declared.check(metric, MetricKind.GAUGE, labels)
        self._bound[metric.name].set(value, tags=dict(labels))

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        self._declared.check(metric, MetricKind.HISTOGRAM, labels)
        self._bound[metric.name].observe(value, tags=dict(labels))

    def observer(self, metric: Metric, **labels: str) -> Callable[[float], None]:
        """What adds observations to one series of a histogram, its labels checked once."""
        self._declared.check(metric, MetricKind.HISTOGRAM, labels)
        observe, tags = self._bound[metric.name].observe, dict(labels)
        return lambda value: observe(value, tags)


def _bound(metric: Metric) -> Any:
    from ray.serve import metrics

    match metric.kind:
        case MetricKind.COUNTER:
            return metrics.Counter(metric.name, metric.help, metric.labels)
        case MetricKind.GAUGE:
            return metrics.Gauge(metric.name, metric.help, metric.labels)
        case MetricKind.HISTOGRAM:
            return metrics.Histogram(metric.name, metric.help, list(metric.buckets), metric.labels)
        case _:
            assert_never(metric.kind)
