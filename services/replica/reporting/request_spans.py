"""Spans of a replica: how a traced request waited, which batch it was in, what that batch did.

A request's span continues the gateway's. A batch has a trace of its own, as it belongs to all
of its requests: it links to them, and the part of each request that was computed links to it.
Spans are made when a batch is over, of times that were taken anyway.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from services.replica.batching.batch_report import BatchReport
from services.replica.batching.batcher import Outputs
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.engine.worker import BatchTimes
from services.replica.request.infer_call import InferCall
from services.telemetry.tracing import Tracing, carried_trace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_NS = 1_000_000_000
_Answer = TypeVar("_Answer")
_Finish = Callable[[InferCall, Outputs], _Answer]
_OnFailure = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class _Traced:
    """A request whose trace is kept; times are POSIX nanoseconds."""

    parent: "Context"
    arrived_ns: int


class RequestSpans:
    """Makes the spans of one replica; used from the event loop alone."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        # Answered by the batch that is about to be reported.
        self._answered: list[_Traced] = []

    def watched(
        self, trace: str, finish: _Finish[_Answer], on_failure: _OnFailure
    ) -> tuple[_Finish[_Answer], _OnFailure]:
        """Callbacks of a request that also end its spans; the given ones when it is not traced.

        Args:
            trace: the `trace` field of its frame.
            finish: makes the answer of the call and its outputs.
            on_failure: is called with the error; None for a request that was cancelled.
        """
        carried = carried_trace(trace)
        if carried is None:
            return finish, on_failure
        traced = _Traced(self._tracing.parent_of(carried), time.time_ns())

        def finish_traced(call: InferCall, outputs: Outputs) -> _Answer:
            answer = finish(call, outputs)
            self._answered.append(traced)
            return answer

        def fail_traced(error: Exception | None) -> None:
            self._fail(traced)
            on_failure(error)

        return finish_traced, fail_traced

    def record_batch(self, report: BatchReport, loaded: LoadedEngine | None) -> None:
        """A batch is over, and its requests are answered."""
        answered = self._answered
        self._answered = []
        if not answered or report.times is None:
            return
        ended_ns = time.time_ns()
        spans = [self._request(traced) for traced in answered]
        began_ns = ended_ns - round((_run_s(report.times) + report.reply_s) * _NS)
        batch = self._batch(report, loaded, spans, began_ns)
        for traced, span in zip(answered, spans, strict=True):
            self._steps(traced, span, batch, report.times, began_ns)
            span.end(ended_ns)
        batch.end(ended_ns)

    def _request(self, traced: _Traced) -> "Span":
        from opentelemetry.trace import SpanKind

        return self._tracing.span(
            "replica", traced.parent, kind=SpanKind.SERVER, begin_ns=traced.arrived_ns
        )

    def _fail(self, traced: _Traced) -> None:
        from opentelemetry.trace import StatusCode

        span = self._request(traced)
        span.set_status(StatusCode.ERROR)
        span.end()

    def _batch(
        self,
        report: BatchReport,
        loaded: LoadedEngine | None,
        spans: "list[Span]",
        began_ns: int,
    ) -> "Span":
        from opentelemetry.trace import Link

        attributes: dict[str, Any] = {
            "smelt.batch.rows": sum(report.rows),
            "smelt.batch.requests": len(report.rows),
        }
        if loaded is not None:
            attributes |= {
                "smelt.generation": loaded.generation,
                "smelt.engine.kind": loaded.kind,
                "smelt.engine.precision": loaded.precision,
                "smelt.engine.digest": loaded.digest,
            }
        return self._tracing.span(
            "batch",
            self._tracing.parent_of(None),
            begin_ns=began_ns - round(report.forming_s * _NS),
            attributes=attributes,
            links=tuple(Link(span.get_span_context()) for span in spans),
        )

    def _steps(
        self, traced: _Traced, span: "Span", batch: "Span", times: BatchTimes, began_ns: int
    ) -> None:
        """Queue and compute of one request."""
        from opentelemetry.trace import Link

        queue = self._tracing.span("queue", span, begin_ns=traced.arrived_ns)
        # The begin is computed back from the end by two clocks, and may lie before the arrival.
        queue.end(max(began_ns, traced.arrived_ns))
        computes_ns = began_ns + round(times.compute_input_s * _NS)
        links = (Link(batch.get_span_context()),)
        compute = self._tracing.span("compute", span, begin_ns=computes_ns, links=links)
        compute.end(computes_ns + round(times.compute_infer_s * _NS))


def _run_s(times: BatchTimes) -> float:
    return times.compute_input_s + times.compute_infer_s + times.compute_output_s
