"""Selectors of series in PromQL text: checked against the catalogue, filtered by variables.

A query of a metric or a label that no process records would show an empty panel, without an error.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from services.contracts.errors import SmeltError
from services.telemetry import catalog
from services.telemetry.metric import Metric, MetricKind

# Not of a metric: Kubernetes' pod discovery adds it, `smelt up --observe` a fixed one.
NAMESPACE: Final = "namespace"
_BY_RAY: Final = frozenset(catalog.REPLICA_METRICS)
_BY_PROMETHEUS_CLIENT: Final = frozenset(catalog.GATEWAY_METRICS + catalog.CONTROLLER_METRICS)
# By the level that the name of a recorded series begins with.
_LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": (),
    "model": ("model",),
    "version": ("model", "version"),
    "generation": ("model", "version", "generation"),
}
_SELECTOR: Final = re.compile(
    r"(?P<name>(?:\w+:)?(?:ray_)?smelt_\w+(?::\w+)?)(?:\{(?P<matchers>[^}]*)\})?"
    r'|\{__name__=~"(?P<names>[^"]*)"(?:, )?(?P<others>[^}]*)\}'
)
_MATCHER: Final = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
_BY: Final = re.compile(r"\bby \(([^)]*)\)")


def exported_name(metric: Metric, suffix: str = "") -> str:
    """The name in Prometheus; a regular expression where two recorders export it."""
    if metric in _BY_RAY and metric in _BY_PROMETHEUS_CLIENT:
        return f"(ray_)?{metric.name}{suffix}"
    return (metric.ray_name if metric in _BY_RAY else metric.name) + suffix


def filtered(query: str, variables: tuple[str, ...] = ()) -> str:
    """A query that shows only what a board's variables select.

    Args:
        query: PromQL, with series as Prometheus knows them.
        variables: labels that are matched with the variable of their name, where a series has
            them and the query does not match them itself.

    Raises:
        SmeltError: a metric, a label or a bucket bound that does not exist.
    """
    known: set[str] = set()

    def replaced(found: re.Match[str]) -> str:
        name = found["name"]
        names = found["names"]
        labels = _common_labels(names or name)
        known.update(labels)
        matchers = found["matchers"] or found["others"] or ""
        matched = dict(_MATCHER.findall(matchers))
        _check_labels(query, matched, labels)
        if bound := matched.get("le"):
            _check_bound(query, name, bound)
        offered = [v for v in variables if v in labels and v not in matched]
        parts = [f'__name__=~"{names}"'] if names else []
        parts += [f'{label}=~"${label}"' for label in offered]
        parts += [matchers] if matchers else []
        return (name or "") + ("{" + ", ".join(parts) + "}" if parts else "")

    text = _SELECTOR.sub(replaced, query)
    for clause in _BY.findall(query):
        _check_labels(query, clause.split(", "), known)
    return text


@cache
def _series() -> Mapping[str, Metric]:
    return dict(_exported())


def _exported() -> Iterator[tuple[str, Metric]]:
    for metric in catalog.ALL_METRICS:
        is_histogram = metric.kind is MetricKind.HISTOGRAM
        for suffix in ("_bucket", "_sum", "_count") if is_histogram else ("",):
            yield exported_name(metric, suffix), metric


def _common_labels(names: str) -> set[str]:
    """What all of these series have, alternatives of a regular expression."""
    return set.intersection(*(_labels(name) for name in names.split("|")))


def _labels(name: str) -> set[str]:
    level, _, rest = name.partition(":")
    if rest and level in _LEVELS:
        return {NAMESPACE, *_LEVELS[level]}
    if metric := _series().get(name):
        return {NAMESPACE, *metric.labels, *(("le",) if name.endswith("_bucket") else ())}
    raise SmeltError(
        f"no process exports '{name}'; telemetry/catalog.py has the metrics: those of replicas "
        "begin with ray_, a histogram has _bucket, _sum and _count"
    )


def _check_labels(query: str, labels: "Mapping[str, str] | list[str]", known: set[str]) -> None:
    if unknown := set(labels) - known:
        raise SmeltError(
            f"query '{query}': there is no label {', '.join(sorted(unknown))}; expected one of "
            f"{', '.join(sorted(known))}"
        )


def _check_bound(query: str, name: str, bound: str) -> None:
    bounds = [f"{each:g}" for each in _series()[name].buckets]
    if bound not in bounds:
        raise SmeltError(
            f"query '{query}': {bound} is no bucket bound of {name}; expected one of "
            f"{', '.join(bounds)}"
        )
