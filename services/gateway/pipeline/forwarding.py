"""Inference by a replica: the innermost of the chain in `inference.py`."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from services.contracts.errors import (
    AnswerTooLargeError,
    ConnectionLostError,
    DeadlineExceededError,
    InputRefusedError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.contracts.text.durations import milliseconds
from services.contracts.transport.frames import Payload
from services.gateway.observability.request_metrics import RequestMetrics
from services.gateway.pipeline.admission import ModelBounds
from services.gateway.pipeline.holding import HeldRequests
from services.gateway.pipeline.inference import InferenceCall
from services.gateway.pipeline.request_head import RequestHead, request_head_from_bytes
from services.gateway.routing.balancer import choice_of, choose, others_than
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.outliers import OutlierWatch
from services.gateway.routing.pool import Pool
from services.gateway.routing.sessions import choose_for_session
from services.gateway.upstream.endpoint import Endpoint
from services.telemetry import catalog
from services.telemetry.logs import REQUEST_ID
from services.telemetry.recorder import Recorder

# A client may choose an id of any length; a log line and a frame are bounded.
_MAX_TRACE_LENGTH = 128
# Replicas that are asked at most, one after the other: those that drain did not run the request.
_MAX_TRIED = 3
# What loses two replicas that have it may be the request, and no third one is risked.
_MAX_LOST = 2
# What a replica answers while nothing is wrong with it; all else counts against it.
_NOT_ITS_FAULT = (
    InvalidRequestError,
    InputRefusedError,
    NotReadyError,
    OverloadedError,
    AnswerTooLargeError,
    DeadlineExceededError,
    UnsupportedFeatureError,
)


class ForwardedInference:
    """Sends a request's bytes to a replica.

    Attributes:
        num_in_flight: requests not yet answered, by model and version; looked at now and
            then for a gauge, which is cheaper than setting it twice for each request.
        held: has requests wait.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        recorder: Recorder,
        outliers: OutlierWatch,
        bounds: ModelBounds,
        held: HeldRequests,
    ) -> None:
        """Send requests to the replicas of a set.

        Args:
            endpoints: connections to replicas, and the routing table.
            recorder: takes the duration of each request, and of each replica's answer.
            outliers: is informed of answers and failures, and ejects replicas.
            bounds: how many requests of a model may be under way.
            held: has requests wait while the replica that would answer them is replaced.
        """
        self._endpoints = endpoints
        self._recorder = recorder
        self._outliers = outliers
        self._bounds = bounds
        self.held = held
        self._metrics = RequestMetrics(recorder)
        self.num_in_flight: defaultdict[tuple[str, str], int] = defaultdict(int)

    async def answer(self, call: InferenceCall) -> Payload:
        """The answer of one replica, or of another one when the first was lost or drains.

        Raises:
            NotFoundError, NotReadyError, InvalidRequestError: no replica can be asked, and none
                is waited for.
            DeadlineExceededError: the client's deadline passed.
            SmeltError: what the replica answered, in its class.
        """
        head = request_head_from_bytes(call.body)
        # No client's id may look like one with a trace beside it: see `telemetry.tracing`.
        trace = head.request_id[:_MAX_TRACE_LENGTH].replace("\0", "")
        REQUEST_ID.set(trace)
        if call.trace is not None:
            trace = call.trace.beside(trace)
        pool = call.pool or self._pool(call, head)
        if pool is not None:
            call.model = pool.model
            call.version = pool.version
        key = (call.model, call.version)
        bound = self._bounds.of(call.model)
        if bound is not None:
            bound.enter()
        self.num_in_flight[key] += 1
        try:
            return await self._send(call, head, pool, trace)
        finally:
            self.num_in_flight[key] -= 1
            if bound is not None:
                bound.leave()

    def forget(self, model: str, version: str) -> None:
        """Drop the number of requests in flight of a version, where it is 0."""
        if self.num_in_flight.get((model, version)) == 0:
            del self.num_in_flight[model, version]

    def _pool(self, call: InferenceCall, head: RequestHead) -> Pool | None:
        """Who may answer; None when that is to be waited for."""
        table = self._endpoints.table
        pool = table.pools.get((head.model_name, head.model_version))
        if pool is not None:
            return pool.drawn(call.session)
        call.model, call.version = table.labels(head.model_name, head.model_version)
        awaited = self.held.ask(head)
        if awaited is None:
            return self._ready_pool(head)  # raises why there is none
        call.version = str(awaited)
        return None

    def _ready_pool(self, head: RequestHead) -> Pool:
        return self._endpoints.table.pool(head.model_name, head.model_version)

    async def _send(
        self, call: InferenceCall, head: RequestHead, pool: Pool | None, trace: str
    ) -> Payload:
        if pool is None:
            pool = await self.held.pool(call, head, partial(self._ready_pool, head))
            pool = pool.drawn(call.session)
            call.version = pool.version
        tried: list[Endpoint] = []
        num_lost = 0
        session = call.session
        while True:
            choice = pool.choice
            tried.append(choose_for_session(session, choice) if session else choose(choice))
            try:
                return await self._send_to(tried[-1], call, trace)
            except NotReadyError as error:
                # Lost or draining. Inference changes nothing, so it may run again.
                num_lost += isinstance(error, ConnectionLostError) and error.may_have_run
                if num_lost == _MAX_LOST:
                    raise _lost_with(pool) from error
                pool = await self._next_pool(call, head, tried, error)
            except OverloadedError:
                # One session may be more than its replica can take; then another one will do.
                if not session or len(tried) > 1 or len(choice.endpoints) == 1:
                    raise
                pool = _pool_with(pool, others_than(tried, choice.endpoints, is_lost=False))
            call.version = pool.version
            self._recorder.count(catalog.REQUEST_RETRIES, model=pool.model, version=pool.version)

    async def _send_to(self, endpoint: Endpoint, call: InferenceCall, trace: str) -> Payload:
        replica = endpoint.replica
        remaining_s = call.remaining_s()
        if remaining_s == 0.0:
            late_s = time.monotonic() - (call.deadline_s or 0.0)
            raise DeadlineExceededError(
                f"the deadline passed {milliseconds(late_s)} before the request could be sent to a "
                "replica"
            )
        begin_s = time.monotonic()
        endpoint.used_s = begin_s
        call.replica_id = replica.replica_id
        try:
            return await endpoint.infer(call.body, remaining_s, trace=trace)
        except ConnectionLostError:
            # At once: a replica that ended fails fast, and would look like the least loaded.
            self._endpoints.eject(endpoint)
            raise
        except SmeltError as error:
            if not isinstance(error, _NOT_ITS_FAULT):
                self._outliers.note_failure(endpoint)
            raise
        finally:
            waited_s = time.monotonic() - begin_s
            call.waited_s += waited_s
            endpoint.num_answers += 1
            endpoint.answers_took_s += waited_s
            self._metrics.record_wait(replica, call.version, waited_s)

    async def _next_pool(
        self, call: InferenceCall, head: RequestHead, tried: list[Endpoint], cause: NotReadyError
    ) -> Pool:
        """The replica to try next, of a newer table; waits for one where that is allowed.

        Raises:
            NotReadyError: no replica is left, or enough were asked.
        """
        try:
            if len(tried) < _MAX_TRIED:
                is_lost = isinstance(cause, ConnectionLostError)
                find = partial(self._pool_without, tried, head, is_lost=is_lost)
                return await self.held.pool(call, head, find)
        except NotReadyError:
            # Of an external server only the cause says what was found there.
            if len(tried) == 1 and tried[0].replica.external is None:
                raise
        # Not above, where it would refer to the error that refers to it; and its traceback holds
        # this frame. Either cycle would keep the request's memory.
        try:
            raise cause
        finally:
            del cause

    def _pool_without(self, tried: list[Endpoint], head: RequestHead, *, is_lost: bool) -> Pool:
        """The endpoints that are left, of a newer table; raises NotReadyError when none is."""
        # Of versions that share, the same one first.
        version = str(tried[-1].replica.model_version)
        table = self._endpoints.table
        pools = table.pool(head.model_name, head.model_version).by_version(version)
        for pool in pools:
            others = others_than(tried, pool.choice.endpoints, is_lost=is_lost) or others_than(
                tried, pool.endpoints, is_lost=is_lost
            )
            if others:
                return _pool_with(pool, others)
        raise NotReadyError(
            f"model '{pools[0].model}' version {pools[0].version} has no other ready "
            "replica than the one that rejected the request; retry later"
        )


def _lost_with(pool: Pool) -> NotReadyError:
    return NotReadyError(
        f"model '{pool.model}' version {pool.version}: two replicas in a row were lost while they "
        "had this request, so it is sent to no other; if that happens again, its inputs may crash "
        "the replica: see the log of a replica"
    )


def _pool_with(pool: Pool, endpoints: Sequence[Endpoint]) -> Pool:
    return replace(pool, choice=choice_of(endpoints))
