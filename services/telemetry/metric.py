"""What a metric is, as data; those that there are stand in `catalog.py`."""

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Prometheus metric types that both bindings can express."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        unit: base unit, "" for counts.
        labels: label names; every one has few values.
        buckets: upper bounds of a histogram, () otherwise.
    """

    name: str
    kind: MetricKind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def ray_name(self) -> str:
        """The name under which Ray's metrics agent exports it."""
        return f"ray_{self.name}"


def counter(name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "") -> Metric:
    """A metric that only grows.

    Args:
        name: `smelt_<noun>_<unit>_total`.
        text: help of the exposition.
        labels: names; empty for a single series.
        unit: "" for a number.
    """
    return Metric(name=name, kind=MetricKind.COUNTER, help=text, unit=unit, labels=labels)


def gauge(name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "") -> Metric:
    """A metric that rises and falls; see `counter` for the arguments."""
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, unit=unit, labels=labels)


def histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    buckets: tuple[float, ...],
    *,
    unit: str = "seconds",
) -> Metric:
    """A metric that counts observations by size.

    Args:
        name: `smelt_<noun>_<unit>`.
        text: help of the exposition.
        labels: names; empty for a single series.
        buckets: upper bounds in `unit`, rising; +Inf is added.
        unit: of what is observed.
    """
    return Metric(
        name=name, kind=MetricKind.HISTOGRAM, help=text, unit=unit, labels=labels, buckets=buckets
    )
