"""What the gateway records of each request; every series is looked up once and kept."""

from collections.abc import Callable
from typing import NamedTuple

import grpc

from services.contracts.errors import OverloadedError
from services.gateway.fleet_view import Replica
from services.telemetry import catalog
from services.telemetry.recorder import Observer, Recorder


class _Ended(NamedTuple):
    """The series of requests of a version that ended alike."""

    add: Callable[[], None]
    observe_s: Observer
    observe_gateway_s: Observer


class RequestMetrics:
    """Records how requests ended, and how long the gateway and replicas took for them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._num_forgotten = recorder, recorder.num_forgotten
        self._ended: dict[tuple[str, str, grpc.StatusCode], _Ended] = {}
        self._waited: dict[tuple[str, str, str, str], Observer] = {}

    def record(
        self,
        model: str,
        version: str,
        code: grpc.StatusCode,
        *,
        duration_s: float,
        waited_s: float,
        trace_id: str = "",
    ) -> None:
        """Add a request that ended.

        Args:
            model: name of the model; "" for what the fleet does not know.
            version: its version; "" likewise.
            code: of the answer.
            duration_s: from arrival to answer.
            waited_s: how much of that it waited for replicas.
            trace_id: of a trace that is kept; "" without one.
        """
        self._drop_forgotten()
        key = model, version, code
        ended = self._ended.get(key)
        if ended is None:
            ended = self._ended[key] = self._new(model, version, code)
        ended.add()
        ended.observe_s(duration_s, trace_id)
        ended.observe_gateway_s(duration_s - waited_s)

    def record_unanswered(
        self,
        model: str,
        version: str,
        code: grpc.StatusCode,
        error: BaseException,
        *,
        is_sent: bool,
    ) -> None:
        """Add why a request got no answer, where that was load, its deadline or its client.

        `is_sent` says whether a replica has had it.
        """
        metric, reason = None, "unanswered" if is_sent else "unsent"
        if isinstance(error, OverloadedError):
            # The gateway's own bound is met before anybody knows for which model it is.
            metric = catalog.REQUESTS_REJECTED
            reason = "replica" if is_sent else "model" if model else "gateway"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            metric = catalog.REQUESTS_EXPIRED
        elif code is grpc.StatusCode.CANCELLED:
            metric = catalog.REQUESTS_CANCELLED
        if metric:
            self._recorder.count(metric, model=model, version=version, reason=reason)

    def record_wait(self, replica: Replica, version: str, waited_s: float) -> None:
        """Add the time that one replica took, whatever it answered."""
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
