"""The stations of an inference request inside the gateway, outermost first.

- MeasuredInference counts and times every request, refused ones too;
- AdmittedInference (`admission.py`) refuses beyond the bound, before anything is read;
- ForwardedInference (`forwarding.py`) reads whom a request is for, picks a replica, sends, and
  sends once more when the replica was lost.
"""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from services.contracts.errors import AnswerTooLargeError
from services.contracts.frames import Payload
from services.gateway.request_metrics import RequestMetrics
from services.gateway.routing import Pool
from services.gateway.status_codes import StatusTable
from services.telemetry.recorder import Recorder
from services.telemetry.tracing import CarriedTrace


@dataclass(slots=True)
class InferenceCall:
    """One request on its way.

    Attributes:
        body: the serialised ModelInferRequest, never changed.
        deadline_s: time.monotonic() after which the client no longer waits; None: it does.
        session: of the client, see `sessions.py`; 0 for none.
        frame_bytes: most that is sent around its answer, in the same message.
        pool: who may answer, where a station in front has drawn it already.
        model, version: metric labels; "" until known, and for what the fleet does not know.
        replica_id: of the replica that was asked last.
        waited_s: how long replicas were waited for.
        trace_id: of the trace that is kept of it; "" without one.
        trace: what the replica is told of that trace.
        span: the gateway's part of it.
    """

    body: Payload
    deadline_s: float | None = None
    session: int = 0
    frame_bytes: int = 0
    pool: Pool | None = None
    model: str = ""
    version: str = ""
    replica_id: str = ""
    waited_s: float = 0.0
    trace_id: str = ""
    trace: CarriedTrace | None = None
    span: Any = None

    def remaining_s(self) -> float | None:
        """Seconds the client still waits, never negative; None when it set no deadline."""
        if self.deadline_s is None:
            return None
        return max(self.deadline_s - time.monotonic(), 0.0)


class Station(Protocol):
    """Answers a call with a serialised ModelInferResponse, or raises."""

    async def answer(self, call: InferenceCall) -> Payload:
        """The answer's bytes."""
        ...


class Watch(Protocol):
    """Is told of every request; see `request_watch.py`."""

    def begin(self, call: InferenceCall) -> None:
        """It has arrived."""
        ...

    def end(
        self, call: InferenceCall, code: grpc.StatusCode, duration_s: float, num_bytes: int
    ) -> None:
        """It is answered, with so many bytes, or refused."""
        ...


class MeasuredInference:
    """Counts every request by status and times it; tells a watch of it, where there is one.

    An answer that no client can be sent is refused here, so that it counts as what it becomes.
    """

    def __init__(
        self,
        inner: Station,
        recorder: Recorder,
        statuses: StatusTable,
        watch: Watch | None = None,
        *,
        max_answer_bytes: int,
    ) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._inner, self._statuses, self._watch = inner, statuses, watch
        self._metrics = RequestMetrics(recorder)

    async def answer(self, call: InferenceCall) -> Payload:
        """Answer, and record how that went."""
        begin_s = time.monotonic()
        answer: Payload = b""
        code = grpc.StatusCode.OK
        watch = self._watch
        if watch is not None:
            watch.begin(call)
        try:
            answer = self._sendable(await self._inner.answer(call), call.frame_bytes)
        except BaseException as error:  # a cancelled request counts too
            code = self._code_of(error, call)
            self._metrics.record_unanswered(
                call.model, call.version, code, error, is_sent=bool(call.replica_id)
            )
            raise
        finally:
            duration_s = time.monotonic() - begin_s
            self._metrics.record(
                call.model,
                call.version,
                code,
                duration_s=duration_s,
                waited_s=call.waited_s,
                trace_id=call.trace_id,
            )
            if watch is not None:
                watch.end(call, code, duration_s, len(answer))
        return answer

    def _sendable(self, answer: Payload, frame_bytes: int) -> Payload:
        size = len(answer) + frame_bytes
        if size > self._max_answer_bytes:
            raise AnswerTooLargeError(
                f"the answer has {size} bytes: at most {self._max_answer_bytes} are sent; "
                "ask for less at once or raise SMELT_GATEWAY_MAX_MESSAGE_BYTES"
            )
        return answer

    def _code_of(self, error: BaseException, call: InferenceCall) -> grpc.StatusCode:
        # gRPC cancels the handler when the deadline passes; the client sees the deadline.
        code = self._statuses.code_of(error)
        is_late = code is grpc.StatusCode.CANCELLED and call.remaining_s() == 0.0
        return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else code
