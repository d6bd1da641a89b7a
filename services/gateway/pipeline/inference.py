"""The chain of interceptors that an inference request passes in the gateway, outermost first.

- ObservedInference has every observer see how each request ended, refused ones too;
- PartInference (`parts.py`) has parts of one request wait where the next ones refuse;
- AdmittedInference (`admission.py`) refuses beyond the bound, before anything is read;
- SharedMemoryInference (`shared_memory/interceptor.py`) reads and writes tensors in shared memory;
- CachedInference (`response_cache.py`) answers what was answered before;
- ForwardedInference (`forwarding.py`) reads whom a request is for, picks a replica, sends, and
  sends once more when the replica was lost; with `holding.py` it waits for one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import grpc

from services.contracts.errors import AnswerTooLargeError
from services.contracts.transport.frames import Payload
from services.gateway.access.gate import Metadata
from services.gateway.api.status_codes import StatusTable
from services.gateway.routing.pool import Pool
from services.telemetry.tracing import CarriedTrace

if TYPE_CHECKING:
    from services.gateway.pipeline.parts import Parts

# The RPCs that requests for models come with.
INFERENCE_METHODS: Final = frozenset({"ModelInfer", "ModelStreamInfer"})
_OK: Final = grpc.StatusCode.OK


@dataclass(slots=True)
class InferenceCall:
    """One request on its way.

    Attributes:
        body: the serialised ModelInferRequest, never changed.
        rpc: it came with, alone or with others of a stream.
        peer: the client's address.
        metadata: as the client sent it.
        deadline_s: time.monotonic() after which the client no longer waits; None: it does.
        session: of the client, see `routing/sessions.py`; 0 for none.
        frame_bytes: most that is sent around its answer, in the same message.
        pool: who may answer, where an interceptor in front has drawn it already.
        model, version: metric labels; "" until known, and for what the fleet does not know.
        replica_id: of the replica that was asked last.
        waited_s: how long replicas were waited for, for an answer or to become ready.
        held_s: how long it was held because no replica was ready.
        trace_id: of the trace that is kept of it; "" without one.
        trace: what is sent to the replica of that trace.
        span: the gateway's part of it.
        parts: of the client's request, of which it is one; None where it is all of it.
        is_logged: it, or another request of its stream, stands in the access log as refused.
    """

    body: Payload
    rpc: str = "ModelInfer"
    peer: str = ""
    metadata: Metadata = ()
    deadline_s: float | None = None
    session: int = 0
    frame_bytes: int = 0
    pool: Pool | None = None
    model: str = ""
    version: str = ""
    replica_id: str = ""
    waited_s: float = 0.0
    held_s: float = 0.0
    trace_id: str = ""
    trace: CarriedTrace | None = None
    span: Any = None
    parts: "Parts | None" = None
    is_logged: bool = False

    def remaining_s(self) -> float | None:
        """Seconds the client still waits, never negative; None when it set no deadline."""
        if self.deadline_s is None:
            return None
        return max(self.deadline_s - time.monotonic(), 0.0)


class InferenceHandler(Protocol):
    """Answers a call with a serialised ModelInferResponse, or raises; interceptors wrap others."""

    async def answer(self, call: InferenceCall) -> Payload:
        """The answer's bytes."""
        ...


class RequestOutcome(NamedTuple):
    """How a request ended.

    Attributes:
        code: of the answer.
        duration_s: from arrival to answer.
        num_bytes: of the answer.
        error: what it was refused with; None where that is not known, and for an answer.
        is_overload: a bound of memory or of requests was reached.
    """

    code: grpc.StatusCode
    duration_s: float
    num_bytes: int = 0
    error: BaseException | None = None
    is_overload: bool = False


class RequestObserver:
    """Sees every request; does nothing by default."""

    def begin(self, call: InferenceCall) -> None:
        """It has arrived."""

    def end(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """It is answered or refused."""

    def rejected(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """It was refused before inference, so that it neither began nor ends; nothing is read."""

    def close(self) -> None:
        """No more requests come; may block."""


class ObservedInference:
    """Has observers see every request.

    An answer that no client can be sent is refused here, so that it counts as what it becomes.
    """

    def __init__(
        self,
        inner: InferenceHandler,
        statuses: StatusTable,
        observers: Sequence[RequestObserver],
        *,
        max_answer_bytes: int,
    ) -> None:
        """Put observers around a handler.

        Args:
            inner: answers the requests.
            statuses: gRPC status of each class of errors.
            observers: see each request begin and end, in this order.
            max_answer_bytes: of an answer; a larger one is refused.
        """
        self._max_answer_bytes = max_answer_bytes
        self._inner = inner
        self._statuses = statuses
        # Bound once, and none that does nothing: this is part of every request's time.
        does_nothing = RequestObserver.begin
        self._begins = [each.begin for each in observers if type(each).begin is not does_nothing]
        self._ends = [each.end for each in observers]

    async def answer(self, call: InferenceCall) -> Payload:
        """The answer; raises as within."""
        begin_s = time.monotonic()
        for begin in self._begins:
            begin(call)
        try:
            answer = self._sendable(await self._inner.answer(call), call.frame_bytes)
        except BaseException as error:  # a cancelled request counts too
            code = self._code_of(error, call)
            took_s = time.monotonic() - begin_s
            self._end(call, RequestOutcome(code, took_s, error=error))
            raise
        self._end(call, RequestOutcome(_OK, time.monotonic() - begin_s, len(answer)))
        return answer

    def _end(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        for end in self._ends:
            end(call, outcome)

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
