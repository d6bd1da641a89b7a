"""Requests of each model, read where Prometheus reads them: on the pages of Ray's agents."""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

from services.telemetry import catalog
from services.telemetry.metrics_page import metrics_page

logger = logging.getLogger(__name__)

_WINDOW_S: Final = 60.0
# An agent of a node that is gone answers nothing until its connection times out.
_READ_WITHIN_S: Final = 3.0
_MOST_AT_ONCE: Final = 32
_REQUESTS = f"{catalog.QUEUE_DURATION.ray_name}_count"
_BUCKETS = f"{catalog.COMPUTE_DURATION.ray_name}_bucket"
_DROPPED = catalog.QUEUE_DROPPED.ray_name
_LINES = tuple(f"{name}{{" for name in (_REQUESTS, _DROPPED, _BUCKETS))
# By address, metric and labels: one series of one replica.
_Counts = dict[tuple[str, str, frozenset[tuple[str, str]]], float]


class LiveRates:
    """Rates of the last minute; not safe to share between threads."""

    def __init__(
        self,
        read: Callable[[str], str | None] = metrics_page,
        within_s: float = _READ_WITHIN_S,
    ) -> None:
        """Nothing is read yet.

        Args:
            read: gives the page of an address, None without an answer.
            within_s: how long a look waits for pages; one that comes later counts as none.
        """
        self._read = read
        self._within_s = within_s
        self._looks: deque[tuple[float, _Counts]] = deque()

    def look(self, addresses: Iterable[str], now_s: float) -> list[dict[str, Any]]:
        """Requests and failures a second, and which bucket half of the batches are in.

        Args:
            addresses: of pages.
            now_s: monotonic seconds.
        """
        pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="metrics-page")
        asked = [pool.submit(self._counts, address) for address in addresses]
        done, _ = wait(asked, self._within_s)
        pool.shutdown(wait=False, cancel_futures=True)
        found: _Counts = {}
        for each in done:
            found |= each.result()
        self._looks.append((now_s, found))
        while now_s - self._looks[0][0] > _WINDOW_S:
            self._looks.popleft()
        began_s, before = self._looks[0]
        return _rates(before, found, now_s - began_s) if now_s > began_s else []

    def _counts(self, address: str) -> _Counts:
        """What a page has of replicas; nothing where it cannot be read."""
        from prometheus_client.parser import text_string_to_metric_families

        found: _Counts = {}
        try:
            lines = (self._read(address) or "").splitlines(keepends=True)
            text = "".join(line for line in lines if line.startswith(_LINES))
            for family in text_string_to_metric_families(text):
                for name, labels, value, *_ in family.samples:
                    if "model" in labels and labels.get("version", "").isdecimal():
                        found[address, name, frozenset(labels.items())] = value
        except ValueError as error:
            logger.warning("metrics endpoint %s cannot be read: %s", address, error)
        return found


def _rates(before: _Counts, now: _Counts, lasted_s: float) -> list[dict[str, Any]]:
    grown: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    answered = {address for address, *_ in before}
    for (address, name, labels), value in now.items():
        of = dict(labels)
        # One that was not there is of a replica that began since, if its page was.
        known = before.get((address, name, labels), 0.0 if address in answered else value)
        amount = max(value - known, 0.0)
        grown[of["model"], int(of["version"])][of["le"] if name == _BUCKETS else name] += amount
    return [
        {
            "name": name,
            "version": version,
            "requests_per_s": float(f"{amounts.pop(_REQUESTS, 0.0) / lasted_s:.3g}"),
            "dropped_per_s": float(f"{amounts.pop(_DROPPED, 0.0) / lasted_s:.3g}"),
            "batch_p50_at_most_s": _half(amounts),
        }
        for (name, version), amounts in grown.items()
    ]


def _half(below: dict[str, float]) -> float | None:
    """The bound that half of all are below; None for none, and beyond the last bound."""
    half = below.pop("+Inf", 0.0) / 2
    bounds = sorted((float(le), num) for le, num in below.items())
    return next((bound for bound, num in bounds if num >= half > 0), None)
