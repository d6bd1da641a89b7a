"""Spans leave over OTLP: a real exporter, a real socket, and what a collector would read."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from services.contracts.process.settings import read_settings
from services.telemetry.tracing import TracingSettings, tracing_from_settings


class Collector(HTTPServer):
    """Keeps what exporters post."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.posted: list[tuple[str, bytes]] = []


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_packed = self.headers.get("Content-Encoding") == "gzip"
        self.server.posted.append((self.path, gzip.decompress(body) if is_packed else body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Keep tests quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_spans_reach_a_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    tracing = tracing_from_settings(read_settings(TracingSettings), "smelt-gateway")
    assert tracing is not None
    span = tracing.span("infer", tracing.parent_of(None), attributes={"smelt.model": "m"})
    tracing.span("queue", span).end()
    span.end()
    tracing.close()
    ((path, body),) = collector.posted
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert path == "/v1/traces"
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "smelt-gateway"
    (scope,) = resource.scope_spans
    assert [each.name for each in scope.spans] == ["queue", "infer"]
    assert scope.spans[0].parent_span_id == scope.spans[1].span_id
