"""The stations of an inference request inside the gateway, outermost first.

- MeasuredInference counts and times every request, refused ones too;
- AdmittedInference refuses beyond the bound, before anything is read;
- ForwardedInference reads whom a request is for, picks a replica, sends, retries twice.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import grpc

from services.contracts.errors import ConnectionLostError, NotReadyError, OverloadedError
from services.gateway.endpoint import Endpoint
from services.gateway.endpoints import EndpointSet
from services.gateway.request_head import RequestHead, request_head_from_bytes
from services.gateway.routing import Pool, choose, others_than
from services.gateway.status_codes import StatusTable
from services.telemetry import catalog
from services.telemetry.logs import REQUEST_ID
from services.telemetry.recorder import Recorder

# A client may choose an id of any length; a log line and a frame have little room for it.
_MAX_TRACE_LENGTH = 128
# A node that is lost may take two replicas that a request goes to, one after the other.
_MAX_RETRIES = 2
_NUMBERS = {2: "two", 3: "three"}


@dataclass(slots=True)
class InferenceCall:
    """One request on its way.

    Attributes:
        body: the serialised ModelInferRequest, never changed.
        deadline_s: time.monotonic() after which the client no longer waits; None: it does.
        model, version: metric labels; "" until known, and for what the fleet does not know.
    """

    body: bytes
    deadline_s: float | None = None
    model: str = ""
    version: str = ""

    def remaining_s(self) -> float | None:
        """Seconds the client still waits, never negative; None when it set no deadline."""
        if self.deadline_s is None:
            return None
        return max(self.deadline_s - time.monotonic(), 0.0)


class Station(Protocol):
    """Answers a call with a serialised ModelInferResponse, or raises."""

    async def answer(self, call: InferenceCall) -> bytes:
        """The answer's bytes."""
        ...


class MeasuredInference:
    """Counts every request by status and times it."""

    def __init__(self, inner: Station, recorder: Recorder, statuses: StatusTable) -> None:
        self._inner, self._recorder, self._statuses = inner, recorder, statuses
        self._observers: dict[tuple[str, str], Callable[[float], None]] = {}

    async def answer(self, call: InferenceCall) -> bytes:
        """Answer, and record how that went."""
        begin_s = time.monotonic()
        code = grpc.StatusCode.OK
        try:
            return await self._inner.answer(call)
        except BaseException as error:  # a cancelled request counts too
            code = self._code_of(error, call)
            raise
        finally:
            self._record(call, code, time.monotonic() - begin_s)

    def _code_of(self, error: BaseException, call: InferenceCall) -> grpc.StatusCode:
        # gRPC cancels the handler when the deadline passes; the client sees the deadline.
        code = self._statuses.code_of(error)
        is_late = code is grpc.StatusCode.CANCELLED and call.remaining_s() == 0.0
        return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else code

    def _record(self, call: InferenceCall, code: grpc.StatusCode, duration_s: float) -> None:
        model, version = call.model, call.version
        self._recorder.count(catalog.REQUESTS, model=model, version=version, code=code.name)
        observe = self._observers.get((model, version))
        if observe is None:
            duration = catalog.REQUEST_DURATION
            observe = self._recorder.observer(duration, model=model, version=version)
            self._observers[model, version] = observe
        observe(duration_s)


class AdmittedInference:
    """Refuses requests beyond a bound, before their bytes are looked at."""

    def __init__(self, inner: Station, max_in_flight: int) -> None:
        self._inner, self._max_in_flight = inner, max_in_flight
        self.num_in_flight = 0

    async def answer(self, call: InferenceCall) -> bytes:
        """Answer; raises OverloadedError when too many requests are under way."""
        if self.num_in_flight >= self._max_in_flight:
            raise OverloadedError(
                f"this gateway has {self.num_in_flight} requests in flight, its bound is "
                f"{self._max_in_flight}; retry later or raise SMELT_GATEWAY_MAX_IN_FLIGHT"
            )
        self.num_in_flight += 1
        try:
            return await self._inner.answer(call)
        finally:
            self.num_in_flight -= 1


class ForwardedInference:
    """Sends a request's bytes to a replica.

    Attributes:
        num_in_flight: requests not yet answered, by model and version; looked at now and
            then for a gauge, which is cheaper than setting it twice for each request.
    """

    def __init__(self, endpoints: EndpointSet, recorder: Recorder) -> None:
        self._endpoints, self._recorder = endpoints, recorder
        self.num_in_flight: defaultdict[tuple[str, str], int] = defaultdict(int)

    async def answer(self, call: InferenceCall) -> bytes:
        """The answer of one replica, or of another one when the first was lost or drains.

        Raises:
            NotFoundError, NotReadyError, InvalidRequestError: nobody can be asked.
            DeadlineExceededError: the client's deadline passed.
            SmeltError: what the replica answered, in its class.
        """
        head = request_head_from_bytes(call.body)
        trace = head.request_id[:_MAX_TRACE_LENGTH]
        REQUEST_ID.set(trace)
        table = self._endpoints.table
        pool = table.pools.get((head.model_name, head.model_version))
        if pool is None:
            call.model, call.version = table.labels(head.model_name, head.model_version)
            pool = table.pool(head.model_name, head.model_version)
        call.model, call.version = pool.model, pool.version
        key = pool.model, pool.version
        self.num_in_flight[key] += 1
        try:
            return await self._send(call, head, pool, trace)
        finally:
            self.num_in_flight[key] -= 1

    async def _send(self, call: InferenceCall, head: RequestHead, pool: Pool, trace: str) -> bytes:
        tried: list[Endpoint] = []
        while True:
            tried.append(choose(pool.endpoints))
            try:
                return await self._send_to(tried[-1], call, trace)
            except NotReadyError as error:
                # Lost or draining. Inference changes nothing, so it may run again.
                pool = self._next_pool(tried, head, pool, error)
            call.version = pool.version
            self._recorder.count(catalog.REQUEST_RETRIES, model=pool.model, version=pool.version)

    async def _send_to(self, endpoint: Endpoint, call: InferenceCall, trace: str) -> bytes:
        try:
            return await endpoint.infer(call.body, call.remaining_s(), trace=trace)
        except ConnectionLostError:
            # At once: a dead replica fails fast, and so would look like the least loaded.
            self._endpoints.eject(endpoint)
            raise

    def _next_pool(
        self, tried: list[Endpoint], head: RequestHead, pool: Pool, cause: NotReadyError
    ) -> Pool:
        """Whom to ask next, of a newer table.

        Raises:
            NotReadyError: nobody is left, or enough were asked: what loses every replica that
                has it may be the request.
        """
        is_lost = isinstance(cause, ConnectionLostError)
        try:
            if len(tried) > _MAX_RETRIES:
                raise cause
            return self._pool_without(tried, head, cause)
        except NotReadyError as none_left:
            if len(tried) == 1:
                raise
            if not is_lost:
                raise cause from None
            raise NotReadyError(
                f"model '{pool.model}' version {pool.version}: {_NUMBERS[len(tried)]} replicas in "
                f"a row were lost while they had this request; retry later"
            ) from none_left

    def _pool_without(self, tried: list[Endpoint], head: RequestHead, cause: NotReadyError) -> Pool:
        """The endpoints that are left, of a newer table; raises NotReadyError when none is."""
        pool = self._endpoints.table.pool(head.model_name, head.model_version)
        is_lost = isinstance(cause, ConnectionLostError)
        others = others_than(tried, pool.endpoints, is_lost=is_lost)
        if not others:
            raise NotReadyError(
                f"model '{pool.model}' version {pool.version} has no other ready replica than "
                f"the one that just refused; retry later"
            ) from cause
        return replace(pool, endpoints=others)
