"""The observers that settings switch on: metrics always; traces, Triton's metrics, the access log.

What is refused before inference is seen by all of them too: by the access check
(`access/guard.py`), or by the server, where a call ended without its handler.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from services.gateway.access.caller import CALLER_NAME
from services.gateway.api.service import SERVICE
from services.gateway.observability.access_log import AccessLog, AccessRecord
from services.gateway.observability.request_metrics import RequestMetrics
from services.gateway.observability.request_tracer import RequestTracer, trace_id_from
from services.gateway.pipeline.inference import (
    INFERENCE_METHODS,
    InferenceCall,
    RequestObserver,
    RequestOutcome,
)
from services.gateway.pipeline.request_head import request_head_from_bytes
from services.gateway.settings import GatewaySettings
from services.grpc_server.server_options import UnhandledCall
from services.telemetry.logs import REQUEST_ID
from services.telemetry.recorder import Recorder
from services.telemetry.tracing import Tracing

INFERENCE_PATHS: Final = frozenset(f"/{SERVICE.full_name}/{name}" for name in INFERENCE_METHODS)
# As much as goes to replicas.
_MAX_ID_LENGTH = 128


def request_observers(
    settings: GatewaySettings,
    recorder: Recorder,
    tracing: Tracing | None,
    triton: RequestObserver | None,
) -> list[RequestObserver]:
    """Those of a gateway; the tracer is the first, as others write down which trace it was.

    Args:
        settings: of the gateway.
        recorder: of its metrics.
        tracing: makes spans; None for none.
        triton: metrics under Triton's names; None for none.

    Raises:
        InvalidRequestError: the access log cannot be written.
    """
    observers: list[RequestObserver] = [RequestTracer(tracing)] if tracing else []
    observers.append(RequestMetrics(recorder))
    if triton:
        observers.append(triton)
    if settings.access_log:
        log = AccessLog(settings.access_log, recorder, share=settings.access_log_share)
        observers.append(LoggedRequests(log))
    return observers


def note_rejection(
    observers: Sequence[RequestObserver], call: InferenceCall, outcome: RequestOutcome
) -> None:
    """Show all observers a request that was refused before inference.

    Args:
        observers: of the gateway.
        call: with what is known of the request.
        outcome: its status and duration.
    """
    for observer in observers:
        observer.rejected(call, outcome)


def note_unhandled(observers: Sequence[RequestObserver]) -> Callable[[UnhandledCall], None]:
    """What a server calls for calls that ended without a handler; other RPCs are not observed."""

    def note(call: UnhandledCall) -> None:
        if call.path not in INFERENCE_PATHS:
            return
        method = call.path.rpartition("/")[2]
        request = InferenceCall(b"", rpc=method, peer=call.peer, metadata=call.metadata)
        outcome = RequestOutcome(call.code, call.duration_s, is_overload=call.is_overload)
        note_rejection(observers, request, outcome)

    return note


class LoggedRequests(RequestObserver):
    """Writes the access log."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log

    def end(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """A line, unless it is one of those that are left out."""
        if self._log.wants(outcome.code):
            request_id = REQUEST_ID.get() or _cached_id(call)
            self._log.add(_record(call, outcome)._replace(request_id=request_id))

    def rejected(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """A line; one for all of a stream's requests, whatever each was refused with."""
        if not call.is_logged:
            call.is_logged = True
            self._log.add(_record(call, outcome))

    def close(self) -> None:
        """Write what is left."""
        self._log.close()


def _record(call: InferenceCall, outcome: RequestOutcome) -> AccessRecord:
    return AccessRecord(
        time_s=time.time(),
        rpc=call.rpc,
        code=outcome.code.name,
        duration_s=outcome.duration_s,
        trace_id=call.trace_id or trace_id_from(call.metadata),
        model=call.model,
        version=call.version,
        bytes_in=len(call.body),
        bytes_out=outcome.num_bytes,
        peer=call.peer,
        caller=CALLER_NAME.get(),
        replica_id=call.replica_id,
    )


def _cached_id(call: InferenceCall) -> str:
    """The client's id of a request that never came to where it is noted; "" for a refused one."""
    if call.replica_id or not call.model:
        return ""
    return request_head_from_bytes(call.body).request_id[:_MAX_ID_LENGTH]
