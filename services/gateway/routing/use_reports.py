"""Reports to the controller which on-demand models requests are for."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import grpc

from services.contracts.process.backoff import Backoff
from services.contracts.security.fleet_dialer import FleetDialer
from services.gateway.pipeline.holding import HeldRequests
from services.gateway.routing.endpoints import EndpointSet
from services.pb import fleet_v1_pb2 as fleet
from services.pb.fleet_v1_pb2_grpc import FleetControlStub

if TYPE_CHECKING:
    from services.pb.fleet_v1_pb2_grpc import FleetControlAsyncStub

logger = logging.getLogger(__name__)

# How exactly the controller knows which model was used last.
_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


class UseReports:
    """Says once a second which were used, and at once which have no replica.

    Requests pay nothing for it: each writes down when it was sent, and this looks there. Without
    on-demand models nothing is sent.
    """

    def __init__(
        self,
        address: str,
        gateway_id: str,
        dialer: FleetDialer,
        endpoints: EndpointSet,
        held: HeldRequests,
        num_in_flight: Mapping[tuple[str, str], int],
    ) -> None:
        """Nothing is connected yet.

        Args:
            address: of the controller, `host:port`.
            gateway_id: of this process.
            dialer: opens the connection.
            endpoints: know when each was used.
            held: knows who found none.
            num_in_flight: by model and version, with those that wait.
        """
        self._address = address
        self._gateway_id = gateway_id
        self._dialer = dialer
        self._endpoints = endpoints
        self._held = held
        self._num_in_flight = num_in_flight
        self._reported_s = time.monotonic()
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            # A new one after each fault: certificates and tokens are rotated.
            async with self._dialer.aio_channel(self._address) as channel:
                try:
                    await self._follow(FleetControlStub(channel))
                except grpc.aio.AioRpcError as error:
                    self._note_fault(f"{error.code().name}: {error.details()}")
            await self._backoff.pause()

    async def _follow(self, stub: "FleetControlAsyncStub") -> None:
        while True:
            if not self._endpoints.table.view.on_demand:
                await self._endpoints.changed.wait()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await self._held.is_asked.wait()
            self._held.is_asked.clear()
            now_s = time.monotonic()
            asked_for = set(self._held.asked_for)
            if uses := list(self._uses(now_s)):
                report = fleet.UseReport(gateway_id=self._gateway_id, models=uses)
                metadata = self._dialer.metadata()
                await stub.ReportUse(report, timeout=_TIMEOUT_S, metadata=metadata)
            self._reported_s = now_s
            self._held.asked_for -= asked_for
            self._held.fault = ""
            self._backoff.reset()

    def _uses(self, now_s: float) -> Iterator[fleet.ModelUse]:
        """Of each model that was used since the last report."""
        table = self._endpoints.table
        for model in table.view.on_demand:
            keys = [(model, str(version)) for version in table.view.models[model]]
            pools = filter(None, map(table.pools.get, keys))
            used_s = max((e.used_s for pool in pools for e in pool.endpoints), default=0.0)
            is_waiting = model in self._held.asked_for
            if is_waiting or any(self._num_in_flight.get(key) for key in keys):
                used_s = now_s
            if used_s >= self._reported_s:
                yield fleet.ModelUse(model_name=model, seconds_ago=now_s - used_s)

    def _note_fault(self, fault: str) -> None:
        if not self._held.fault:
            logger.warning("use of on-demand models is not reported, so none is loaded: %s", fault)
        self._held.fault = f"the controller, which loads it, is unreachable: {fault}"
