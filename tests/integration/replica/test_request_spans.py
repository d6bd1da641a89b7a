"""Spans of a real replica: two traced requests in one batch, and one that is not traced."""

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from services.contracts.errors import DeadlineExceededError
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from services.telemetry.tracing import CarriedTrace, Tracing

from .conftest import connected
from .held_engine import HeldEngine
from .published import Shelf, ids_of, request_of

TRACES = {name: name * 32 for name in "ab"}
SPAN = "b7ad6b7169203331"


def carried(name: str) -> str:
    """What a gateway sends beside a request."""
    return CarriedTrace(f"00-{TRACES[name]}-{SPAN}-01").beside(f"request {name}")


def only(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


@pytest.mark.usefixtures("own_thread")
async def test_requests_of_one_batch(
    shelf: Shelf, settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    engine = shelf.publish_engine()
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, ALWAYS_ON, "tested")
    server = ReplicaServer(settings, NullRecorder(), tracing=tracing)
    await server.start()
    try:
        async with connected(server.addresses[0], server.token) as connection:
            held = HeldEngine(server, monkeypatch)
            first = asyncio.create_task(connection.infer(request_of(ids_of(1, 2))))
            await held.is_held.wait()
            infer = server.replica.infer
            batch = [infer(request_of(ids_of(1, 3)), trace=carried(name)) for name in "ab"]
            batch.append(infer(request_of(ids_of(1, 3)), trace="only an id"))
            held.may_go.set()
            await asyncio.gather(first, *batch)
            late = infer(request_of(ids_of(1, 3)), 0.0, carried("a"))
            with pytest.raises(DeadlineExceededError):
                await late
    finally:
        await server.stop(grace_s=0)
    tracing.close()
    spans = list(exporter.get_finished_spans())
    failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert [span.name for span in failed] == ["replica"]
    together = only(spans, "batch")
    assert together.parent is None
    attributes = dict(together.attributes or {})
    assert (attributes["smelt.batch.rows"], attributes["smelt.batch.requests"]) == (3, 3)
    assert attributes["smelt.engine.digest"] == engine.digest
    assert {format_trace_id(link.context.trace_id) for link in together.links} == {*TRACES.values()}
    for trace_id in TRACES.values():
        own = [
            span
            for span in spans
            if format_trace_id(span.context.trace_id) == trace_id and span not in failed
        ]
        check_request(own, together)


def check_request(spans: list[ReadableSpan], batch: ReadableSpan) -> None:
    """Queue and compute of one request, below the gateway's span."""
    request, queue, compute = (only(spans, name) for name in ("replica", "queue", "compute"))
    assert request.parent is not None
    assert format_span_id(request.parent.span_id) == SPAN
    for step in (queue, compute):
        assert step.parent is not None
        assert step.parent.span_id == request.context.span_id
    assert [link.context.span_id for link in compute.links] == [batch.context.span_id]
    times = (request.start_time, queue.end_time, compute.start_time, request.end_time)
    assert None not in times
    assert sorted(times) == list(times)  # type: ignore[type-var]
