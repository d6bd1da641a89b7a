"""A histogram of the catalogue as prometheus_client collects it, exemplars included."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from services.telemetry import bucket_counts
from services.telemetry.bucket_counts import BucketCounts, BucketSnapshot
from services.telemetry.metric import Metric

_Bucket = tuple[str, float] | tuple[str, float, Exemplar]


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
