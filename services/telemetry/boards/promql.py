"""PromQL from catalogue objects: a query cannot name a metric or a label that is not there.

A renamed metric breaks the type check; a label that a metric lacks raises when the query is
written. How a metric is spelled follows from who records it: replicas through Ray, others not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from services.contracts.errors import SmeltError
from services.contracts.selection import GATED
from services.telemetry import catalog
from services.telemetry.metric import Metric, MetricKind

# Whoever scrapes puts it on: Kubernetes' own for a pod, a fixed one for a fleet on one host.
NAMESPACE = "namespace"
RATE_INTERVAL = "$__rate_interval"
_BY_RAY = frozenset(catalog.REPLICA_METRICS)
# A fallback for other reasons: where no engine was measured to be faster, nothing is lacking.
LACKING = f'!~"{"|".join(GATED)}"'
_BY_PROMETHEUS_CLIENT = frozenset(
    catalog.GATEWAY_METRICS + catalog.CONTROLLER_METRICS + catalog.COMPILER_METRICS
)


def is_(value: str) -> str:
    """Matches one value of a label."""
    return f'="{value}"'


def is_not(value: str) -> str:
    """Matches all values of a label but one."""
    return f'!="{value}"'


def any_of(values: Iterable[str]) -> str:
    """Matches some values of a label; none of them may hold a sign of regular expressions."""
    return f'=~"{"|".join(values)}"'


def exported_name(metric: Metric, suffix: str = "") -> str:
    """The name in Prometheus; a regular expression where two recorders export it."""
    if metric in _BY_RAY and metric in _BY_PROMETHEUS_CLIENT:
        return f"(ray_)?{metric.name}{suffix}"
    return (metric.ray_name if metric in _BY_RAY else metric.name) + suffix


@dataclass(frozen=True, kw_only=True)
class RecordingRule:
    """A series that Prometheus computes by itself.

    Attributes:
        labels: what its series are told apart by.
    """

    name: str
    expr: str
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Writes queries for one purpose.

    Attributes:
        variables: labels that a person filters by; each is matched with its variable.
        keeps: labels that every sum keeps.
        window: over which rates are taken.
    """

    variables: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    window: str = RATE_INTERVAL

    def series(self, metric: Metric, suffix: str = "", **where: str) -> str:
        """The series of a metric that pass the filters."""
        _check_labels(metric, where)
        name = exported_name(metric, suffix)
        has_two_names = name.startswith("(")
        matchers = [f'__name__=~"{name}"'] if has_two_names else []
        matchers += self._matchers((*metric.labels, NAMESPACE), where)
        return ("" if has_two_names else name) + _braces(matchers)

    def any_series(self, metrics: Iterable[Metric]) -> str:
        """The series of several metrics that pass the filters; each filter must fit all."""
        listed = tuple(metrics)
        names = "|".join(exported_name(metric) for metric in listed)
        common = set.intersection(*({*metric.labels, NAMESPACE} for metric in listed))
        return _braces([f'__name__=~"{names}"', *self._matchers(common, {})])

    def recorded(self, rule: RecordingRule) -> str:
        """The series of a recording rule that pass the filters."""
        return rule.name + _braces(self._matchers(rule.labels, {}))

    def total(self, metric: Metric, *by: str, **where: str) -> str:
        """Sum of a gauge or a counter by labels."""
        return self._sum(metric, by, self.series(metric, **where))

    def largest(self, metric: Metric, *by: str, **where: str) -> str:
        """Largest of a gauge that several processes report alike, by labels."""
        _check_labels(metric, by)
        return f"max{self.by(by)} ({self.series(metric, **where)})"

    def rate(self, metric: Metric, *by: str, window: str = "", **where: str) -> str:
        """Increments per second of a counter, or observations of a histogram, by labels."""
        suffix = "_count" if metric.kind is MetricKind.HISTOGRAM else ""
        return self._sum_rate(metric, suffix, by, window, where)

    def bucket_rate(self, metric: Metric, bound: float, *by: str) -> str:
        """Observations per second of a histogram up to a bound, which must be a bucket's."""
        if bound not in metric.buckets:
            raise SmeltError(f"metric '{metric.name}': {bound:g} is none of its bucket bounds")
        return self._sum_rate(metric, "_bucket", by, "", {"le": is_(f"{bound:g}")})

    def increase(self, metric: Metric, *by: str, window: str, **where: str) -> str:
        """Increments of a counter within a window, by labels."""
        return self._sum(metric, by, f"increase({self.series(metric, **where)}[{window}])")

    def grew(self, metric: Metric, *by: str, window: str) -> str:
        """What was added to a counter within a window, where something was.

        Also to one that had no series before: a recorder that cannot count nothing begins
        with the first event, which no increase shows.
        """
        series = self.series(metric)
        before = self._sum(metric, by, f"{series} offset {window}")
        increase = self.increase(metric, *by, window=window)
        return f"({increase} > 0) or ({self._sum(metric, by, series)} unless {before})"

    def overall_mean(self, metric: Metric, *by: str) -> str:
        """Mean of all observations so far; for what happens too seldom for a rate."""
        observed = self._sum(metric, by, self.series(metric, "_sum"))
        return f"{observed} / {self.observations(metric, *by)}"

    def mean(self, metric: Metric, *by: str) -> str:
        """Mean of the recent observations of a histogram, by labels."""
        observed = self._sum_rate(metric, "_sum", by, "", {})
        return f"{observed} / {self.rate(metric, *by)}"

    def observations(self, metric: Metric, *by: str) -> str:
        """Number of all observations so far, by labels."""
        return self._sum(metric, by, self.series(metric, "_count"))

    def mean_rate(self, metric: Metric, *by: str) -> str:
        """Increments per second of a counter, mean over its series; of seconds it is a share."""
        _check_labels(metric, by)
        return f"avg{self.by(by)} (rate({self.series(metric)}[{self.window}]))"

    def overall_quantile(self, q: float, metric: Metric, *by: str) -> str:
        """A quantile of all observations of a histogram so far, by labels."""
        buckets = self._sum(metric, ("le", *by), self.series(metric, "_bucket"))
        return f"histogram_quantile({q:g}, {buckets})"

    def quantile(self, q: float, metric: Metric, *by: str, window: str = "") -> str:
        """A quantile of a histogram by labels."""
        by = ("le", *by)
        return f"histogram_quantile({q:g}, {self._sum_rate(metric, '_bucket', by, window, {})})"

    def by(self, labels: Iterable[str]) -> str:
        """The clause that keeps labels; empty when nothing is kept."""
        kept = ", ".join(dict.fromkeys((*self.keeps, *labels)))
        return f" by ({kept})" if kept else ""

    def _sum_rate(
        self, metric: Metric, suffix: str, by: tuple[str, ...], window: str, where: dict[str, str]
    ) -> str:
        series = self.series(metric, suffix, **where)
        return self._sum(metric, by, f"rate({series}[{window or self.window}])")

    def _sum(self, metric: Metric, by: tuple[str, ...], inner: str) -> str:
        _check_labels(metric, by)
        return f"sum{self.by(by)} ({inner})"

    def _matchers(self, labels: Iterable[str], where: dict[str, str]) -> list[str]:
        matchers = [f"{label}{matcher}" for label, matcher in where.items()]
        offered = [label for label in self.variables if label in labels]
        return [f'{label}=~"${label}"' for label in offered] + matchers


def _check_labels(metric: Metric, labels: Iterable[str]) -> None:
    known = {*metric.labels, NAMESPACE, *(("le",) if metric.buckets else ())}
    if unknown := set(labels) - known:
        raise SmeltError(
            f"query of metric '{metric.name}': it has no label {', '.join(sorted(unknown))}; "
            f"it has {', '.join(sorted(known))}"
        )


def _braces(matchers: list[str]) -> str:
    return "{" + ", ".join(matchers) + "}" if matchers else ""
