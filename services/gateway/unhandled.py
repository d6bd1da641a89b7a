"""Requests of which no handler knows how they ended: counted and logged as any other."""

from typing import Final

import grpc

from services.gateway.handlers import SERVICE
from services.gateway.origin import INFERENCE_METHODS, OnRefused, Origin
from services.grpc_server.server_options import UnhandledCall
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

INFERENCE_PATHS: Final = frozenset(f"/{SERVICE.full_name}/{name}" for name in INFERENCE_METHODS)
# Of those that no replica has had, by how they ended.
_METRICS: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: catalog.REQUESTS_EXPIRED,
    grpc.StatusCode.CANCELLED: catalog.REQUESTS_CANCELLED,
}


class UnhandledRequests:
    """Counts requests that were not whole, or not taken."""

    def __init__(self, recorder: Recorder, on_refused: OnRefused | None = None) -> None:
        """`on_refused` writes the access log, where there is one."""
        self._recorder, self._on_refused = recorder, on_refused

    def note(self, call: UnhandledCall) -> None:
        """A call ended so; those of other methods than inference are not counted anywhere."""
        if call.path not in INFERENCE_PATHS:
            return
        # Nobody has read which model it is for.
        self._recorder.count(catalog.REQUESTS, model="", version="", code=call.code.name)
        reason = "memory" if call.is_overload else "unsent"
        metric = catalog.REQUESTS_REJECTED if call.is_overload else _METRICS.get(call.code)
        if metric:
            self._recorder.count(metric, model="", version="", reason=reason)
        if self._on_refused is not None:
            origin = Origin(call.path.rpartition("/")[2], call.peer, call.metadata)
            self._on_refused(origin, call.code, call.duration_s)
