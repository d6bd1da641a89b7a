"""Requests of each model, from what its replicas record: read where Prometheus reads it.

Replicas report their state to the controller and no figures; those are on the pages of Ray's
agents. So they are read while somebody looks, and no faster than agents renew them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from services.telemetry import catalog
from services.telemetry.metrics_page import metrics_page

_WINDOW_S: Final = 60.0
_REQUESTS = f"{catalog.QUEUE_DURATION.ray_name}_count"
_DROPPED = catalog.QUEUE_DROPPED.ray_name
_BUCKETS = f"{catalog.COMPUTE_DURATION.ray_name}_bucket"
_NAMES = tuple(f"{name}{{" for name in (_REQUESTS, _DROPPED, _BUCKETS))
_Model = tuple[str, int]


@dataclass
class _Grown:
    """By how much the counters of one model grew between two looks, or in all of a window."""

    requests: float = 0.0
    dropped: float = 0.0
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, le: str, amount: float) -> None:
        if name == _REQUESTS:
            self.requests += amount
        elif name == _DROPPED:
            self.dropped += amount
        else:
            self.buckets[float(le)] += amount

    def join(self, other: "_Grown") -> None:
        self.requests += other.requests
        self.dropped += other.dropped
        for bound, amount in other.buckets.items():
            self.buckets[bound] += amount


class LiveRates:
    """Rates of the last minute; not safe to share between threads."""

    def __init__(self, read: Callable[[str], str | None] = metrics_page) -> None:
        """Nothing is read yet; `read` gives the page of an address, None without an answer."""
        self._read = read
        self._before: dict[str, float] = {}
        self._looks: deque[tuple[float, dict[_Model, _Grown]]] = deque()

    def look(self, addresses: Iterable[str], now_s: float) -> None:
        """Read all pages; blocks. `now_s` are monotonic seconds."""
        found: dict[str, float] = {}
        grown: dict[_Model, _Grown] = defaultdict(_Grown)
        for address in addresses:
            for line in (self._read(address) or "").splitlines():
                if line.startswith(_NAMES):
                    self._take(f"{address} {line}", line, found, grown)
        self._before = found
        self._looks.append((now_s, grown))
        while now_s - self._looks[0][0] > _WINDOW_S:
            self._looks.popleft()

    def _take(
        self, key: str, line: str, found: dict[str, float], grown: dict[_Model, _Grown]
    ) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        series = key.rpartition(" ")[0]
        for family in text_string_to_metric_families(line):
            for name, labels, value, *_ in family.samples:
                found[series] = value
                # One that is new is of a replica that began since, but at the first look.
                before = self._before.get(series, 0.0 if self._before else value)
                model = (labels["model"], int(labels["version"]))
                grown[model].add(name, labels.get("le", ""), max(value - before, 0.0))

    def rates(self) -> dict[_Model, dict[str, Any]]:
        """Requests and failures a second and the median time of a batch; {} before two looks."""
        if len(self._looks) < 2:
            return {}
        lasted_s = self._looks[-1][0] - self._looks[0][0]
        totals: dict[_Model, _Grown] = defaultdict(_Grown)
        for _, grown in list(self._looks)[1:]:
            for model, amounts in grown.items():
                totals[model].join(amounts)
        return {
            model: {
                "requests_per_s": float(f"{total.requests / lasted_s:.3g}"),
                "dropped_per_s": float(f"{total.dropped / lasted_s:.3g}"),
                "batch_p50_s": _median(total.buckets),
            }
            for model, total in totals.items()
        }


def _median(cumulative: dict[float, float]) -> float | None:
    """By linear interpolation in its bucket, as Prometheus does; None without an observation."""
    bounds = sorted(cumulative)
    half = cumulative[bounds[-1]] / 2 if bounds else 0.0
    for low, high in pairwise([0.0, *bounds]):
        below = cumulative.get(low, 0.0)
        if half and cumulative[high] >= half:
            share = (half - below) / (cumulative[high] - below)
            # The last bucket has no end.
            return low if high == float("inf") else float(f"{low + share * (high - low):.3g}")
    return None
