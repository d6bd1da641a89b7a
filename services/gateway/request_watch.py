"""What is told of each request when asked for: access log, traces, Triton's own metrics."""

import time

import grpc

from services.gateway.access.caller import CALLER_NAME
from services.gateway.access_log import AccessLog, AccessRecord
from services.gateway.inference import InferenceCall
from services.gateway.origin import ORIGIN, Origin
from services.gateway.request_head import request_head_from_bytes
from services.gateway.request_tracer import RequestTracer, trace_id_from
from services.gateway.settings import GatewaySettings
from services.gateway.triton_metrics import TritonMetrics
from services.telemetry.logs import REQUEST_ID
from services.telemetry.recorder import Recorder
from services.telemetry.tracing import Tracing

_NOWHERE = Origin("ModelInfer", "", ())
# As much as goes to replicas.
_MAX_ID_LENGTH = 128


def request_watch(
    settings: GatewaySettings,
    recorder: Recorder,
    tracing: Tracing | None,
    triton: TritonMetrics | None,
) -> "RequestWatch | None":
    """What a gateway's settings ask for; None when that is nothing.

    Raises:
        InvalidRequestError: the access log cannot be written.
    """
    target, share = settings.access_log, settings.access_log_share
    if not target and tracing is None and triton is None:
        return None
    log = AccessLog(target, recorder, share=share) if target else None
    return RequestWatch(log, RequestTracer(tracing) if tracing else None, triton)


class RequestWatch:
    """Sees every request begin and end; made only when something is to be told."""

    def __init__(
        self, log: AccessLog | None, tracer: RequestTracer | None, triton: TritonMetrics | None
    ) -> None:
        self._log, self._tracer, self._triton = log, tracer, triton

    def begin(self, call: InferenceCall) -> None:
        """A request has arrived."""
        if self._tracer is not None:
            self._tracer.begin(call, ORIGIN.get() or _NOWHERE)

    def end(
        self, call: InferenceCall, code: grpc.StatusCode, duration_s: float, num_bytes: int
    ) -> None:
        """It is answered, with so many bytes, or refused."""
        if self._tracer is not None:
            self._tracer.end(call, code)
        if self._triton is not None:
            self._triton.record((call.model, call.version), code, call.replica_id)
        if self._log is None or not self._log.wants(code):
            return
        origin = ORIGIN.get() or _NOWHERE
        self._log.add(
            AccessRecord(
                time_s=time.time(),
                rpc=origin.rpc,
                code=code.name,
                duration_s=duration_s,
                request_id=REQUEST_ID.get() or _cached_id(call),
                trace_id=call.trace_id or trace_id_from(origin.metadata),
                model=call.model,
                version=call.version,
                bytes_in=len(call.body),
                bytes_out=num_bytes,
                peer=origin.peer,
                caller=CALLER_NAME.get(),
                replica_id=call.replica_id,
            )
        )

    def close(self) -> None:
        """Write what is left of the log."""
        if self._log is not None:
            self._log.close()

    def refused(self, origin: Origin, code: grpc.StatusCode, duration_s: float) -> None:
        """A call was refused at the gate, or requests of its stream were: one line for all."""
        if self._log is not None:
            self._log.add(
                AccessRecord(
                    time_s=time.time(),
                    rpc=origin.rpc,
                    code=code.name,
                    duration_s=duration_s,
                    trace_id=trace_id_from(origin.metadata),
                    peer=origin.peer,
                    caller=CALLER_NAME.get(),
                )
            )


def _cached_id(call: InferenceCall) -> str:
    """The client's id of a request that never came to where it is noted; "" for a refused one."""
    if call.replica_id or not call.model:
        return ""
    return request_head_from_bytes(call.body).request_id[:_MAX_ID_LENGTH]
