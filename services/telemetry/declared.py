"""What both bindings refuse: a metric that is not declared, a wrong kind, wrong label names."""

from collections.abc import Iterable, Mapping

from services.contracts.errors import SmeltError
from services.telemetry.metric import Metric, MetricKind


class DeclaredMetrics:
    """The metrics that one process declares."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._by_name = {metric.name: metric for metric in metrics}

    def labels(self, name: str) -> tuple[str, ...]:
        """The labels of a declared metric."""
        return self._by_name[name].labels

    def check(self, metric: Metric, kind: MetricKind, labels: Mapping[str, str]) -> None:
        """Refuse a record that the catalogue does not allow.

        Args:
            metric: of the catalogue.
            kind: that the recorder's method is for.
            labels: values by label name.

        Raises:
            SmeltError: the metric was not declared, is of another kind, or the labels are
                not exactly its own. A fault of the calling code, so never a request's fault.
        """
        known = self._by_name.get(metric.name)
        if known is not metric and known != metric:
            raise SmeltError(
                f"metric '{metric.name}' was not declared by this process; it records "
                f"{', '.join(sorted(self._by_name)) or 'none'}: add it to the process's tuple "
                f"in services/telemetry/catalog.py"
            )
        if metric.kind is not kind:
            raise SmeltError(f"metric '{metric.name}' is a {metric.kind.value}, not a {kind.value}")
        if labels.keys() != set(metric.labels):
            raise SmeltError(
                f"metric '{metric.name}': expected labels {sorted(metric.labels)}, "
                f"got {sorted(labels)}"
            )
