"""Pages of HTTP servers of this host."""

import pytest
from prometheus_client import CollectorRegistry

from services.telemetry.metrics_page import is_answered
from services.telemetry.prometheus_recorder import serve_metrics


def test_a_page_is_answered_while_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy of the environment cannot reach an address of this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = serve_metrics(0, CollectorRegistry())
    url = f"http://127.0.0.1:{server.port}/metrics"
    assert is_answered(url)
    server.close()
    assert not is_answered(url)
