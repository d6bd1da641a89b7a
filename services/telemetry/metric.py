"""What a metric is, as data; those that there are stand in `catalog.py`."""

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial


class MetricKind(StrEnum):
    """Prometheus metric types that both bindings can express."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: `smelt_<noun>_<unit>`, of a counter with `_total`.
        help: of the exposition.
        labels: label names; every one has few values, and none gives a single series.
        buckets: upper bounds of a histogram in `unit`, rising, +Inf is added; () otherwise.
        unit: base unit, "" for counts.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    _: KW_ONLY
    kind: MetricKind
    unit: str = ""

    @property
    def ray_name(self) -> str:
        """The name under which Ray's metrics agent exports it."""
        return f"ray_{self.name}"


# What only grows, what rises and falls, and observations counted by size.
counter = partial(Metric, kind=MetricKind.COUNTER)
gauge = partial(Metric, kind=MetricKind.GAUGE)
histogram = partial(Metric, kind=MetricKind.HISTOGRAM, unit="seconds")
