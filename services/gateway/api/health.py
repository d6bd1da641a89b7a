"""grpc.health.v1: the gateway as a whole, and each model under its own name.

The servicer that ships with gRPC loses its watchers of a service when one of them leaves,
and its streams would hold up every shutdown until the grace is over.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.gateway.api.service import SERVICE
from services.gateway.routing.table import RoutingTable
from services.grpc_server.calls.context import Context

_Answer = health_pb2.HealthCheckResponse
OVERALL: Final = ("", SERVICE.full_name)


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no stubs
    """Answers from the routing table it was shown last."""

    def __init__(self) -> None:
        self._table = RoutingTable()
        self._is_leaving = False
        self._changed = asyncio.Event()

    @property
    def is_leaving(self) -> bool:
        """Whether `leave` was called."""
        return self._is_leaving

    def show(self, table: RoutingTable) -> None:
        """Answer from this table now."""
        self._table = table
        self._wake()

    def leave(self) -> None:
        """Answer NOT_SERVING from now on, and end all watches after that answer."""
        self._is_leaving = True
        self._wake()

    async def Check(  # noqa: N802 - the service names it
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND for a name that is no model."""
        status = self._status(request.service)
        if status == _Answer.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no model '{request.service}' is known; '' asks for the gateway as a whole",
            )
        return _Answer(status=status)

    async def Watch(  # noqa: N802 - the service names it
        self, request: health_pb2.HealthCheckRequest, _: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after each change of it."""
        sent = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != sent:
                yield _Answer(status=status)
                sent = status
            if self._is_leaving:
                return
            await changed.wait()

    def _status(self, name: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        if name not in OVERALL and name not in self._table.view.models:
            return _Answer.SERVICE_UNKNOWN
        if self._is_leaving:
            return _Answer.NOT_SERVING
        table = self._table
        if name not in OVERALL:
            is_ready = table.would_answer(name, "")
        else:
            # One broken model must not take the whole gateway out of a load balancer.
            on_demand = (table.would_answer(model, "") for model in table.view.on_demand)
            is_ready = bool(table.pools) or any(on_demand)
        return _Answer.SERVING if is_ready else _Answer.NOT_SERVING

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
