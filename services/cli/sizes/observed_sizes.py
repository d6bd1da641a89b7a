"""The sizes that a fleet's replicas saw, read where Prometheus reads them.

The controller names the nodes' metrics agents, so what a Prometheus reaches this reaches too;
counts are those since the replicas started.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.cli.sizes.bucket_advice import SizeCounts
from services.contracts.errors import NotReadyError
from services.telemetry import catalog
from services.telemetry.buckets import SIZE_BUCKETS
from services.telemetry.metric import Metric
from services.telemetry.metrics_page import metrics_page

_LARGEST = round(SIZE_BUCKETS[-1])
# Beside dimensions, none of which has this name.
_BATCHES = ""


@dataclass
class ObservedSizes:
    """Sums over all replicas of one model version.

    Attributes:
        dims: by name of the dynamic dimension.
        batches: runs of engines by their rows.
        real, padded: elements of requests, and those computed beside them.
        is_sampled: by samples of requests, of which neither is known.
    """

    dims: dict[str, SizeCounts] = field(default_factory=lambda: defaultdict(SizeCounts))
    batches: dict[int, float] = field(default_factory=dict)
    real: float = 0.0
    padded: float = 0.0
    is_sampled: bool = False


def observed_sizes(addresses: Sequence[str], model: str, version: int) -> ObservedSizes:
    """Read every endpoint and add up.

    Args:
        addresses: `host:port` of metrics endpoints; those that do not answer are left out.
        model: its name.
        version: of the model.

    Raises:
        NotReadyError: none of them answers, or one with something else than metrics.
    """
    pages = [page for page in map(metrics_page, addresses) if page is not None]
    if not pages:
        raise NotReadyError(
            f"no metrics endpoint answers of {', '.join(addresses) or 'none that is known'}; give "
            "one that can be reached from here by --metrics HOST:PORT"
        )
    try:
        return sizes_from_pages(pages, model, version)
    except ValueError as error:
        raise NotReadyError(
            f"{', '.join(addresses)}: one of them shows no metrics in Prometheus' text format: "
            f"{error}; give the fleet's metrics endpoints by --metrics HOST:PORT"
        ) from error


def sizes_from_pages(pages: Iterable[str], model: str, version: int) -> ObservedSizes:
    """The sums over pages of metrics, for one model version.

    Args:
        pages: in Prometheus' text format; raises ValueError for another one.
        model: its name.
        version: of the model.
    """
    from prometheus_client.parser import text_string_to_metric_families

    found = ObservedSizes()
    wanted = {"model": model, "version": str(version)}
    below: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if wanted.items() <= sample.labels.items():
                    _add(found, below, sample.name, sample.labels, sample.value)
    found.batches = _by_bound(below.pop(_BATCHES, {}))
    for dim, cumulative in below.items():
        found.dims[dim].counts = _by_bound(cumulative)
    return found


def _add(
    found: ObservedSizes,
    below: dict[str, dict[float, float]],
    name: str,
    labels: dict[str, str],
    value: float,
) -> None:
    if name in _names(catalog.REQUEST_SIZE, "_bucket"):
        # Histograms are cumulative: bins are subtracted once all replicas are added up.
        below[labels["dimension"]][float(labels["le"])] += value
    elif name in _names(catalog.BATCH_SIZE, "_bucket"):
        below[_BATCHES][float(labels["le"])] += value
    elif name in _names(catalog.REQUEST_SIZE, "_sum"):
        found.dims[labels["dimension"]].total += value
    elif name in _names(catalog.REAL_ELEMENTS):
        found.real += value
    elif name in _names(catalog.PADDED_ELEMENTS):
        found.padded += value


def _names(metric: Metric, suffix: str = "") -> tuple[str, str]:
    """As Ray exports it, and as a process of its own does."""
    return metric.ray_name + suffix, metric.name + suffix


def _by_bound(cumulative: dict[float, float]) -> dict[int, float]:
    counts = dict[int, float]()
    before = 0.0
    for bound in sorted(cumulative):
        # Sizes beyond the last bound are not known more exactly.
        size = 2 * _LARGEST if math.isinf(bound) else round(bound)
        if more := cumulative[bound] - before:
            counts[size] = more
        before = cumulative[bound]
    return counts
