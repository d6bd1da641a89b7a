"""TraceSetting as an unmodified tritonclient sends it, over a real tracer."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from services.contracts.errors import InvalidRequestError, UnsupportedFeatureError
from services.gateway.api.trace_settings import TraceSettings
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry.tracing import Tracing


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    """Of a process that was told to trace one request in four."""
    tracing = Tracing(InMemorySpanExporter(), TraceIdRatioBased(0.25), "tested")
    tracing.share = 0.25
    yield tracing
    tracing.close()


async def _answered(settings: TraceSettings, **wanted: str | None) -> dict[str, list[str]]:
    request = pb.TraceSettingRequest()
    for name, value in wanted.items():
        request.settings[name].value.extend([] if value is None else [value])
    answer = await settings.answer(request)
    return {name: list(setting.value) for name, setting in answer.settings.items()}


def _is_wanted(tracing: Tracing) -> bool:
    return tracing.is_wanted("a request", tracing.parent_of(None))


async def test_what_is_set_decides_which_requests_are_traced(tracing: Tracing) -> None:
    settings = TraceSettings(tracing.share, tracing.set_share)
    first = {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["4"],
        "trace_mode": ["opentelemetry"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
    }
    assert await _answered(settings) == first
    assert (await _answered(settings, trace_rate="1"))["trace_rate"] == ["1"]
    assert all(_is_wanted(tracing) for _ in range(20))
    assert (await _answered(settings, trace_level="OFF"))["trace_level"] == ["OFF"]
    assert not any(_is_wanted(tracing) for _ in range(20))
    assert await _answered(settings, trace_level=None, trace_rate=None) == first
    assert tracing.share == 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace_rate", "0"),
        ("trace_rate", "many"),
        ("trace_rate", "9" * 5000),
        ("trace_level", "TENSORS"),
        ("trace_file", "/tmp/x"),
    ],
)
async def test_wrong_settings_change_nothing(tracing: Tracing, name: str, value: str) -> None:
    settings = TraceSettings(tracing.share, tracing.set_share)
    with pytest.raises(InvalidRequestError, match=name):
        await _answered(settings, **{"trace_level": "OFF", name: value})
    assert tracing.share == 0.25


async def test_settings_of_trace_files_are_ignored_with_a_warning(
    tracing: Tracing, caplog: pytest.LogCaptureFixture
) -> None:
    """perf_analyzer sends them with --trace-count and --log-frequency, and ends when refused."""
    settings = TraceSettings(tracing.share, tracing.set_share)
    answer = await _answered(settings, trace_rate="2", trace_count="100", log_frequency="50")
    assert answer["trace_rate"] == ["2"]
    assert (answer["trace_count"], answer["log_frequency"]) == (["-1"], ["0"])
    assert "'trace_count' is ignored" in caplog.text
    assert "'log_frequency' is ignored" in caplog.text
    assert tracing.share == 0.5


async def test_one_model_alone_cannot_be_traced(tracing: Tracing) -> None:
    request = pb.TraceSettingRequest(model_name="m")
    request.settings["trace_rate"].value.append("1")
    with pytest.raises(UnsupportedFeatureError, match="for all models"):
        await TraceSettings(tracing.share, tracing.set_share).answer(request)
