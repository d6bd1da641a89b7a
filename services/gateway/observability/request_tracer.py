"""A span for each request that is traced, and its trace sent on to the replica."""

import re
from typing import TYPE_CHECKING, Final

import grpc

from services.gateway.access.gate import Metadata
from services.gateway.pipeline.inference import InferenceCall, RequestObserver, RequestOutcome
from services.telemetry.logs import REQUEST_ID
from services.telemetry.tracing import CarriedTrace, Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_SERVICE: Final = "inference.GRPCInferenceService"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
# W3C lets a list of vendors be this long; the frame to the replica can hold it.
_MAX_TRACESTATE_LENGTH: Final = 512


class RequestTracer(RequestObserver):
    """Begins and ends the gateway's spans."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, call: InferenceCall) -> None:
        """Begin a span, unless the sampler lets this request pass."""
        tracing = self._tracing
        name = f"{_SERVICE}/{call.rpc}"
        parent = tracing.parent_of(_carried(call.metadata))
        if not tracing.is_wanted(name, parent):
            return
        from opentelemetry.trace import SpanKind, format_trace_id

        attributes = {
            "rpc.system": "grpc",
            "rpc.service": _SERVICE,
            "rpc.method": call.rpc,
            "client.address": call.peer,
            "smelt.request.size": len(call.body),
        }
        call.span = tracing.span(name, parent, kind=SpanKind.SERVER, attributes=attributes)
        call.trace_id = format_trace_id(call.span.get_span_context().trace_id)
        call.trace = tracing.carried(call.span)

    def end(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """End the span of a request that has one."""
        span = call.span
        code = outcome.code
        if span is None:
            return
        span.set_attributes(
            {
                "rpc.grpc.status_code": code.value[0],
                "smelt.model": call.model,
                "smelt.version": call.version,
                "smelt.replica_id": call.replica_id,
                "smelt.request_id": REQUEST_ID.get(),
            }
        )
        if code is not grpc.StatusCode.OK:
            _mark_failed(span, code.name)
        span.end()


def trace_id_from(metadata: Metadata) -> str:
    """The client's trace id, for a log line; "" without one that is well formed."""
    carried = _carried(metadata)
    found = _TRACEPARENT.fullmatch(carried.traceparent) if carried else None
    return found[1] if found else ""


def _carried(metadata: Metadata) -> CarriedTrace | None:
    traceparent = tracestate = ""
    for key, value in metadata:
        if key == "traceparent":
            traceparent = str(value)
        elif key == "tracestate" and len(value) <= _MAX_TRACESTATE_LENGTH:
            tracestate = str(value)
    return CarriedTrace(traceparent, tracestate) if traceparent else None


def _mark_failed(span: "Span", text: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, text)
