"""One scrape of several workers."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from services.gateway.workers.worker_metrics import WorkerMetrics

NUM_WORKERS = 3
# Of any wait for something that is sure to happen.
LIMIT_S = 30.0


class _Worker:
    """What is looked at of a worker."""

    def __init__(self, number: int, port: int) -> None:
        self.number, self.metrics_port, self.num_restarts = number, port, 0


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Metrics that each worker shows only once all of them have been asked."""
    monkeypatch.setattr("services.gateway.workers.worker_metrics.SCRAPE_TIMEOUT_S", LIMIT_S)
    together = threading.Barrier(NUM_WORKERS, timeout=2 * LIMIT_S)

    class Shown(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            together.wait()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# TYPE smelt_seen gauge\nsmelt_seen 1.0\n# EOF\n")

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Shown) for _ in range(NUM_WORKERS)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield [server.server_address[1] for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


def test_workers_are_asked_at_once(ports: list[int]) -> None:
    workers: Any = [_Worker(number, port) for number, port in enumerate(ports)]
    samples = [
        (sample.labels["worker"], sample.value)
        for family in WorkerMetrics(workers).collect()
        for sample in family.samples
        if sample.name == "smelt_seen"
    ]
    assert samples == [("0", 1.0), ("1", 1.0), ("2", 1.0)]


def test_no_workers_are_no_families_but_their_own() -> None:
    names = [family.name for family in WorkerMetrics([]).collect()]
    assert len(names) == 2
