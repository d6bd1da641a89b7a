"""What all workers of a gateway count, on one scrape.

Every series of a worker is shown with one label more, its number: the workers look as several
gateways do, a restart is a counter's reset as Prometheus knows it, and a request costs no more
than in one process. Sums over processes (files that all of them write, as prometheus_client
offers) would make every count slower, and a sum that loses an ended worker's part would fall.
"""

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from services.gateway.workers.supervisor import Worker
from services.telemetry.catalog import WORKER_RESTARTS, WORKERS_SERVING

logger = logging.getLogger(__name__)

SCRAPE_TIMEOUT_S: Final = 2.0


class WorkerMetrics(Collector):
    """Collects from all workers that serve, each time it is asked."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = tuple(workers)

    def describe(self) -> list[Metric]:
        """Nothing: registering it must not poll the workers yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """How the workers fare, then all their families, each with the samples of all of them."""
        num_serving = sum(worker.metrics_port > 0 for worker in self._workers)
        yield GaugeMetricFamily(WORKERS_SERVING.name, WORKERS_SERVING.help, value=num_serving)
        num_restarts = sum(worker.num_restarts for worker in self._workers)
        yield CounterMetricFamily(WORKER_RESTARTS.name, WORKER_RESTARTS.help, value=num_restarts)
        families: dict[str, Metric] = {}
        # All at once: each may take its time just when many do, and a scrape has one time for all.
        with ThreadPoolExecutor(max_workers=max(len(self._workers), 1)) as threads:
            shown = list(threads.map(_families_of, self._workers))
        for worker, of_worker in zip(self._workers, shown, strict=True):
            for family in of_worker:
                known = families.setdefault(family.name, family)
                samples = [
                    sample._replace(labels={**sample.labels, "worker": str(worker.number)})
                    for sample in family.samples
                ]
                known.samples = samples if known is family else known.samples + samples
        yield from families.values()


def _families_of(worker: Worker) -> list[Metric]:
    """What one worker shows; nothing when it cannot be asked just now."""
    if not worker.metrics_port:
        return []
    # The other format has no exemplars.
    headers = {"Accept": CONTENT_TYPE_LATEST}
    connection = HTTPConnection("127.0.0.1", worker.metrics_port, timeout=SCRAPE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics", headers=headers)
        text = connection.getresponse().read().decode()
        return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    except (OSError, HTTPException, ValueError) as error:
        logger.warning("gateway worker %d shows no metrics: %s", worker.number, error)
        return []
    finally:
        connection.close()
