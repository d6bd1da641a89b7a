"""Traces: off unless asked for, the standard variables, and what travels beside a request."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import format_trace_id

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import read_settings
from services.telemetry.tracing import (
    CarriedTrace,
    Tracing,
    TracingSettings,
    carried_trace,
    tracing_from_settings,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED, NOT_SAMPLED = (
    CarriedTrace(f"00-{TRACE}-b7ad6b7169203331-{flags}", "vendor=1") for flags in ("01", "00")
)


@pytest.fixture
def tracing(request: pytest.FixtureRequest) -> Iterator[Tracing]:
    settings = TracingSettings(otel_traces_exporter="console", **request.param)
    made = tracing_from_settings(settings, "tested")
    assert made is not None
    yield made
    made.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_no_traces_unless_asked_for(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tracing_from_settings(read_settings(TracingSettings), "tested") is None


def test_neither_needs_the_packages_of_the_other() -> None:
    """A process that traces nothing starts without OpenTelemetry."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import services.gateway.__main__, services.replica.reporting.request_spans\n"
        "from services.telemetry.tracing import *\n"
        "assert tracing_from_settings(TracingSettings(), 'x') is None\n"
        "tracing_from_settings(TracingSettings(otel_traces_exporter='console'), 'x')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "pip install opentelemetry-sdk" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_SAMPLER", "sometimes"), ("OTEL_TRACES_SAMPLER_ARG", "1.5")],
)
def test_a_wrong_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequestError, match=f"{name}: got '{value}'"):
        read_settings(TracingSettings)


def test_an_exporter_that_nobody_offers_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no package offers the exporter 'unknown'"):
        tracing_from_settings(TracingSettings(otel_traces_exporter="unknown"), "x")


@pytest.mark.parametrize(
    ("protocol", "name"),
    [("", "otlp_proto_http"), ("http/protobuf", "otlp_proto_http"), ("grpc", "otlp_proto_grpc")],
)
def test_otlp_is_what_is_installed_for_the_protocol(
    protocol: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "stand_in-1.dist-info"
    installed.mkdir()
    exporter = f"{InMemorySpanExporter.__module__}:InMemorySpanExporter"
    text = f"[opentelemetry_traces_exporter]\n{name} = {exporter}\n"
    (installed / "entry_points.txt").write_text(text)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    tracing = tracing_from_settings(read_settings(TracingSettings), "x")
    assert tracing is not None
    tracing.close()


NEVER = {"otel_traces_sampler_arg": 0.0}
ALWAYS = {"otel_traces_sampler_arg": 1.0}


@pytest.mark.parametrize(
    ("tracing", "carried", "is_wanted"),
    [
        (NEVER, None, False),
        (ALWAYS, None, True),
        # The client's word is heard: it sees a trace as a whole or not at all.
        (NEVER, SAMPLED, True),
        (ALWAYS, NOT_SAMPLED, False),
        ({"otel_traces_sampler": "traceidratio", **ALWAYS}, NOT_SAMPLED, True),
        ({"otel_traces_sampler": "always_off"}, SAMPLED, False),
        ({"otel_traces_sampler": "parentbased_always_on"}, None, True),
    ],
    indirect=["tracing"],
)
def test_what_is_sampled(tracing: Tracing, carried: CarriedTrace | None, is_wanted: bool) -> None:
    assert tracing.is_wanted("x", tracing.parent_of(carried)) is is_wanted


def test_spans_are_exported_when_it_closes() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, ALWAYS_OFF, "tested")
    span = tracing.span("x", tracing.parent_of(SAMPLED), attributes={"a": 1})
    child = tracing.span("y", span)
    told = tracing.carried(span)
    child.end()
    span.end()
    tracing.close()
    below, above = exporter.get_finished_spans()
    assert (below.name, above.name, dict(above.attributes or {})) == ("y", "x", {"a": 1})
    assert {format_trace_id(each.context.trace_id) for each in (below, above)} == {TRACE}
    assert below.parent == above.context
    assert above.resource.attributes["service.name"] == "tested"
    assert (told.traceparent[:36], told.tracestate) == (f"00-{TRACE}-", "vendor=1")


@pytest.mark.parametrize("carried", [SAMPLED, CarriedTrace(SAMPLED.traceparent)])
def test_a_trace_travels_beside_a_request_id(carried: CarriedTrace) -> None:
    text = carried.beside("any id: 00-1")
    assert carried_trace(text) == carried
    assert text.startswith("any id: 00-1\0")


def test_an_id_alone_is_no_trace() -> None:
    assert carried_trace("") is carried_trace("id") is None
