"""What the gateway records of each request; every series is looked up once and kept."""

from collections.abc import Callable
from typing import Final, NamedTuple

import grpc

from services.contracts.errors import OverloadedError
from services.gateway.pipeline.inference import InferenceCall, RequestObserver, RequestOutcome
from services.gateway.routing.fleet_view import ReplicaInfo
from services.telemetry import catalog
from services.telemetry.recorder import Observer, Recorder

# Requests that got no answer, by status.
_UNANSWERED: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: catalog.REQUESTS_EXPIRED,
    grpc.StatusCode.CANCELLED: catalog.REQUESTS_CANCELLED,
}


class _Ended(NamedTuple):
    """The series of requests of a version that ended alike."""

    add: Callable[[], None]
    observe_s: Observer
    observe_gateway_s: Observer


class RequestMetrics(RequestObserver):
    """Records how requests ended, and how long the gateway and replicas took for them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_forgotten = recorder.num_forgotten
        self._ended: dict[tuple[str, str, grpc.StatusCode], _Ended] = {}
        self._waited: dict[tuple[str, str, str, str], Observer] = {}

    def end(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """Count and time a request, by the model and version that the fleet knows it for."""
        self._drop_forgotten()
        key = call.model, call.version, outcome.code
        ended = self._ended.get(key)
        if ended is None:
            ended = self._ended[key] = self._new(*key)
        ended.add()
        ended.observe_s(outcome.duration_s, call.trace_id)
        ended.observe_gateway_s(outcome.duration_s - call.waited_s)
        if outcome.error is not None:
            self._count_unanswered(call, outcome)

    def rejected(self, call: InferenceCall, outcome: RequestOutcome) -> None:  # noqa: ARG002 - not read
        """Count a request without a model: callers without permission must not choose labels."""
        self._recorder.count(catalog.REQUESTS, model="", version="", code=outcome.code.name)
        metric = catalog.REQUESTS_REJECTED if outcome.is_overload else _UNANSWERED.get(outcome.code)
        if metric:
            reason = "memory" if outcome.is_overload else "unsent"
            self._recorder.count(metric, model="", version="", reason=reason)

    def _count_unanswered(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """Count why there is no answer, where that was load, its deadline or its client."""
        metric = _UNANSWERED.get(outcome.code)
        is_sent = bool(call.replica_id)
        reason = "unanswered" if is_sent else "unsent"
        if isinstance(outcome.error, OverloadedError):
            # The gateway's own bound is met before anybody knows for which model it is.
            metric = catalog.REQUESTS_REJECTED
            reason = "replica" if is_sent else "model" if call.model else "gateway"
        if metric:
            self._recorder.count(metric, model=call.model, version=call.version, reason=reason)

    def record_wait(self, replica: ReplicaInfo, version: str, waited_s: float) -> None:
        """Record the time that one replica took, whatever it answered.

        Args:
            replica: that was asked.
            version: that served the request.
            waited_s: from sending the request to its answer.
        """
        self._drop_forgotten()
        engine = replica.engine
        key = replica.model_name, version, replica.generation, engine.kind
        observe = self._waited.get(key)
        if observe is None:
            labels = dict(zip(catalog.REPLICA_DURATION.labels, key, strict=True))
            observe = self._recorder.observer(catalog.REPLICA_DURATION, **labels)
            self._waited[key] = observe
        observe(waited_s)

    def _drop_forgotten(self) -> None:
        """Look all series up again once some were forgotten: a version may come back."""
        if self._num_forgotten != self._recorder.num_forgotten:
            self._num_forgotten = self._recorder.num_forgotten
            self._ended.clear()
            self._waited.clear()

    def _new(self, model: str, version: str, code: grpc.StatusCode) -> _Ended:
        recorder = self._recorder
        labels = {"model": model, "version": version, "code": code.name}
        return _Ended(
            recorder.adder(catalog.REQUESTS, **labels),
            recorder.observer(catalog.REQUEST_DURATION, **labels),
            recorder.observer(catalog.GATEWAY_DURATION, **labels),
        )
