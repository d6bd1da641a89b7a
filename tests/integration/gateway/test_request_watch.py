"""Access log and traces of a real gateway, asked by an unmodified Triton client."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from prometheus_client.openmetrics.exposition import generate_latest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.gateway.access.static_tokens import new_token, token_hash
from services.telemetry.tracing import CarriedTrace, Tracing, carried_trace
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

TOKEN = new_token()
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
BY_PARENT = ParentBased(ALWAYS_OFF)


async def logged(fleet: "Fleet", path: Path) -> list[dict[str, Any]]:
    """What stands in the log once the gateway has closed it."""
    await fleet.gateway.stop()
    text = await asyncio.to_thread(path.read_text)
    return [json.loads(line) for line in text.splitlines()]


async def guarded_gateway(fleet: "Fleet", path: Path, access_file: Path) -> dict[str, str]:
    """Start one that logs, and lets one token ask one model; returns that token's header."""
    grants = [{"verbs": ["infer"], "models": ["echo"]}]
    entry = {"name": "reader", "sha256": token_hash(TOKEN), "grants": grants}
    await asyncio.to_thread(access_file.write_text, yaml.safe_dump({"tokens": [entry]}))
    await fleet.start_gateway(access_log=str(path), access_file=access_file)
    await fleet.until_ready("r1", "r2")
    return {"authorization": f"Bearer {TOKEN}"}


async def test_one_line_for_each_request(
    echo_fleet: "Fleet", inputs: Inputs, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    await echo_fleet.start_gateway(access_log=str(path))
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()
    await client.infer("echo", inputs(), request_id="mine", headers=SAMPLED)
    with pytest.raises(InferenceServerException):
        await client.infer("unknown", inputs())
    good, bad = await logged(echo_fleet, path)
    (frame,) = (f for replica in echo_fleet.replicas.values() for f in replica.frames)
    assert good.pop("duration_s") > 0
    assert good.pop("bytes_out") > 0
    assert good.pop("replica_id") in echo_fleet.replicas
    assert good.pop("peer").startswith("ipv4:127.0.0.1:")
    assert good.pop("time") <= bad["time"]
    assert good == {
        "rpc": "ModelInfer",
        "code": "OK",
        "request_id": "mine",
        "trace_id": TRACE,
        "model": "echo",
        "version": "1",
        "bytes_in": len(frame.request),
    }
    # A name that clients made up does not stand there either.
    assert (bad["code"], "model" in bad, "replica_id" in bad) == ("NOT_FOUND", False, False)


async def test_who_asked_and_who_was_refused(
    echo_fleet: "Fleet", inputs: Inputs, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    bearer = await guarded_gateway(echo_fleet, path, tmp_path / "access.yaml")
    client = await echo_fleet.client()
    await client.infer("echo", inputs(), headers=bearer)
    for model, headers in (("other", bearer), ("echo", {})):
        with pytest.raises(InferenceServerException):
            await client.infer(model, inputs(), headers=headers)
    lines = await logged(echo_fleet, path)
    assert [(line["code"], line.get("caller")) for line in lines] == [
        ("OK", "reader"),
        ("PERMISSION_DENIED", "reader"),
        ("UNAUTHENTICATED", None),
    ]
    assert TOKEN not in str(lines)


async def test_each_request_of_a_stream_has_its_line(
    echo_fleet: "Fleet", inputs: Inputs, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    await echo_fleet.start_gateway(access_log=str(path))
    await echo_fleet.until_ready("r1", "r2")
    answers = await streamed(await echo_fleet.client(), inputs, "a", "b")
    assert answers == ["a", "b"]
    lines = await logged(echo_fleet, path)
    assert {(line["rpc"], line["code"]) for line in lines} == {("ModelStreamInfer", "OK")}
    assert sorted(line["request_id"] for line in lines) == ["a", "b"]


async def test_what_a_stream_may_not_ask_is_told_and_counted(
    echo_fleet: "Fleet", inputs: Inputs, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    bearer = await guarded_gateway(echo_fleet, path, tmp_path / "access.yaml")
    client = await echo_fleet.client()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for model in ("echo", "other", "other"):
            yield {"model_name": model, "inputs": inputs()}

    found = [error async for _, error in client.stream_infer(requests(), headers=bearer)]
    assert [error is None for error in found] == [True, False, False]
    name = "smelt_requests_total"
    labels = {"model": "", "version": "", "code": "PERMISSION_DENIED"}
    assert echo_fleet.registry.get_sample_value(name, labels) == 2
    lines = await logged(echo_fleet, path)
    assert sorted((line["rpc"], line["code"], line["caller"]) for line in lines) == [
        ("ModelStreamInfer", "OK", "reader"),
        ("ModelStreamInfer", "PERMISSION_DENIED", "reader"),
    ]


async def streamed(client: InferenceServerClient, inputs: Inputs, *ids: str) -> list[str]:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for request_id in ids:
            yield {"model_name": "echo", "inputs": inputs(), "request_id": request_id}

    found = client.stream_infer(requests(), headers=SAMPLED)
    return [answer.get_response().id async for answer, _ in found]


async def test_a_span_continues_the_clients_trace(echo_fleet: "Fleet", inputs: Inputs) -> None:
    exporter, tracing = await traced(echo_fleet, BY_PARENT)
    client = await echo_fleet.client()
    await client.infer("echo", inputs(), request_id="mine", headers=SAMPLED)
    tracing.close()
    (span,) = exporter.get_finished_spans()
    assert span.name == "inference.GRPCInferenceService/ModelInfer"
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert format_span_id(span.parent.span_id) == SPAN
    assert format_trace_id(span.context.trace_id) == TRACE
    assert span.resource.attributes["service.name"] == "tested"
    attributes = dict(span.attributes or {})
    assert (attributes["smelt.model"], attributes["smelt.request_id"]) == ("echo", "mine")
    assert attributes["rpc.grpc.status_code"] == 0
    # What the replica is told: the gateway's span is its parent.
    (frame,) = (f for replica in echo_fleet.replicas.values() for f in replica.frames)
    carried = carried_trace(frame.trace)
    assert carried is not None
    assert carried.traceparent == f"00-{TRACE}-{format_span_id(span.context.span_id)}-01"
    assert (carried.tracestate, frame.trace.partition("\0")[0]) == ("vendor=1", "mine")
    # And the histogram names the trace.
    page = generate_latest(echo_fleet.registry).decode()
    (exemplar,) = [line for line in page.splitlines() if " # " in line]
    assert exemplar.startswith("smelt_request_duration_seconds_bucket{")
    assert f'# {{trace_id="{TRACE}"}}' in exemplar


async def traced(fleet: "Fleet", sampler: Sampler) -> tuple[InMemorySpanExporter, Tracing]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, sampler, "tested")
    await fleet.start_gateway(tracing)
    await fleet.until_ready("r1", "r2")
    return exporter, tracing


async def test_what_the_client_does_not_trace_is_not_traced(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    exporter, tracing = await traced(echo_fleet, ParentBased(ALWAYS_ON))
    await (await echo_fleet.client()).infer("echo", inputs(), headers=NOT_SAMPLED)
    tracing.close()
    assert exporter.get_finished_spans() == ()
    (frame,) = (f for replica in echo_fleet.replicas.values() for f in replica.frames)
    assert frame.trace == ""


async def test_an_id_that_looks_like_a_trace_is_none(echo_fleet: "Fleet", inputs: Inputs) -> None:
    await echo_fleet.until_ready("r1", "r2")
    request_id = CarriedTrace(**SAMPLED).beside("mine")
    client = await echo_fleet.client()
    result = await client.infer("echo", inputs(), request_id=request_id)
    assert result.get_response().id == request_id
    (frame,) = (f for replica in echo_fleet.replicas.values() for f in replica.frames)
    assert frame.trace.startswith("mine00-")
    assert carried_trace(frame.trace) is None


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-nonsense-01"}])
async def test_a_request_without_a_trace_begins_one(
    echo_fleet: "Fleet", inputs: Inputs, headers: dict[str, str]
) -> None:
    exporter, tracing = await traced(echo_fleet, ParentBased(ALWAYS_ON))
    await (await echo_fleet.client()).infer("echo", inputs(), headers=headers)
    tracing.close()
    (span,) = exporter.get_finished_spans()
    assert span.parent is None


async def test_a_refusal_is_an_error_of_its_span(echo_fleet: "Fleet", inputs: Inputs) -> None:
    exporter, tracing = await traced(echo_fleet, BY_PARENT)
    with pytest.raises(InferenceServerException):
        await (await echo_fleet.client()).infer("unknown", inputs(), headers=SAMPLED)
    tracing.close()
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "NOT_FOUND")


async def test_each_request_of_a_stream_has_its_span(echo_fleet: "Fleet", inputs: Inputs) -> None:
    exporter, tracing = await traced(echo_fleet, BY_PARENT)
    await streamed(await echo_fleet.client(), inputs, "a", "b")
    tracing.close()
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {"inference.GRPCInferenceService/ModelStreamInfer"}
    ids = sorted(str((span.attributes or {})["smelt.request_id"]) for span in spans)
    assert ids == ["a", "b"]
    assert {format_trace_id(span.context.trace_id) for span in spans} == {TRACE}


async def test_tritons_metrics_of_a_request(echo_fleet: "Fleet", inputs: Inputs) -> None:
    await echo_fleet.start_gateway(triton_metrics=True)
    metrics = echo_fleet.gateway.triton_metrics
    assert metrics is not None
    echo_fleet.registry.register(metrics)
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()
    await client.infer("echo", inputs())
    with pytest.raises(InferenceServerException):
        await client.infer("unknown", inputs())
    echo = {"model": "echo", "version": "1"}

    async def scraped(name: str) -> float | None:
        # From another thread, as a scrape comes.
        return await asyncio.to_thread(echo_fleet.metric, f"nv_inference_{name}", **echo)

    assert await scraped("request_success") == 1
    assert (await scraped("request_duration_us") or 0) > 0
    assert await scraped("pending_request_count") == 0
    assert await scraped("count") == 1
