"""The FleetControl service: thin methods over `FleetState` and the reconciler."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from services.contracts.errors import (
    InvalidRequestError,
    NotFoundError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.controller.api.fleet_state import AttachedReplica, FleetState
from services.controller.api.model_loading import Serving
from services.controller.interfaces import Reconciler
from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc

logger = logging.getLogger(__name__)

_CODE_BY_ERROR: Mapping[type[SmeltError], grpc.StatusCode] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    UnsupportedFeatureError: grpc.StatusCode.UNIMPLEMENTED,
}


@dataclass(frozen=True)
class FleetControl(fleet_grpc.FleetControlServicer):
    """Attach for replicas, WatchEndpoints for gateways, and RPCs for commands.

    Attributes:
        state: the fleet as this controller sees it.
        reconciler: compares what is deployed with what should be, at each Reconcile.
        serving: loads and unloads models, for SetServed.
        reattach_grace_s: how long a replica is kept whose stream was lost.
        look_timeout_s: how long a command waits for the first look; less than its deadline.
    """

    state: FleetState
    reconciler: Reconciler
    serving: Serving
    reattach_grace_s: float = 30.0
    look_timeout_s: float = 8.0

    async def Attach(  # noqa: N802 - the proto's name
        self,
        request_iterator: AsyncIterator[fleet.ReplicaReport],
        context: grpc.aio.ServicerContext[fleet.ReplicaReport, fleet.ReplicaCommand],
    ) -> AsyncIterator[fleet.ReplicaCommand]:
        """Keep a replica registered while its stream is open."""
        first = await anext(aiter(request_iterator), None)
        if first is None:
            return
        replica = self.state.attach(first)
        logger.info("replica attached: %s", first.replica_id)
        reports = asyncio.create_task(self._take_reports(replica, request_iterator))
        # The stream of reports ends with the replica's process: that ends the commands.
        reports.add_done_callback(lambda _: replica.commands.put_nowait(None))
        try:
            # There may be nothing to announce for long.
            await context.send_initial_metadata(())
            while (command := await replica.commands.get()) is not None:
                yield command
        finally:
            reports.cancel()
            self.state.detach(replica)
            loop = asyncio.get_running_loop()
            loop.call_later(self.reattach_grace_s, self.state.forget, replica)
            logger.info("replica detached: %s", first.replica_id)

    async def _take_reports(
        self, replica: AttachedReplica, reports: AsyncIterator[fleet.ReplicaReport]
    ) -> None:
        try:
            async for report in reports:
                self.state.update(replica, report)
        except grpc.RpcError as error:
            logger.info("stream of replica %s broke: %r", replica.report.replica_id, error)

    async def WatchEndpoints(  # noqa: N802
        self,
        request: fleet.WatchEndpointsRequest,
        context: grpc.aio.ServicerContext[fleet.WatchEndpointsRequest, fleet.FleetSnapshot],
    ) -> AsyncIterator[fleet.FleetSnapshot]:
        """Stream the whole fleet, once it is known, and again after each change.

        Before the first look a gateway would take an empty fleet for one without models. A look
        that fails ends the stream with its fault; the gateway soon connects again.
        """
        logger.info("gateway watches: %s", request.gateway_id)
        await self._wait_until_read(context, None)
        async for snapshot in self.state.watch():
            yield snapshot

    async def GetFleet(  # noqa: N802
        self,
        request: fleet.GetFleetRequest,
        context: grpc.aio.ServicerContext[fleet.GetFleetRequest, fleet.FleetSnapshot],
    ) -> fleet.FleetSnapshot:
        """The whole fleet, once it is known: to a command an empty one looks as one without models.

        Where no look succeeded within a time that callers wait for, the answer is
        FAILED_PRECONDITION; once a look failed and replicas have attached, it is those, no model,
        and the fault.
        """
        snapshot = self.state.snapshot()
        if not (snapshot.fault and snapshot.replicas):
            await self._wait_until_read(context, self.look_timeout_s)
        return self.state.snapshot()

    async def _wait_until_read(
        self, context: grpc.aio.ServicerContext[Any, Any], timeout_s: float | None
    ) -> None:
        """Wait for the end of a look; FAILED_PRECONDITION where none has succeeded yet."""
        try:
            async with asyncio.timeout(timeout_s):
                fault = await self.state.looked()
        except TimeoutError:
            fault = "it has just started; retry in a few seconds"
        if fault:
            why = f"the controller has not completed a first sync of store and cluster: {fault}"
            # UNAVAILABLE is the code of a controller that cannot be reached.
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)

    async def Reconcile(  # noqa: N802
        self,
        request: fleet.ReconcileRequest,
        context: grpc.aio.ServicerContext[fleet.ReconcileRequest, fleet.ReconcileReply],
    ) -> fleet.ReconcileReply:
        """Look at the store now."""
        await self.reconciler.reconcile_now()
        return fleet.ReconcileReply(revision=self.state.revision)

    async def ReportUse(  # noqa: N802
        self,
        request: fleet.UseReport,
        context: grpc.aio.ServicerContext[fleet.UseReport, fleet.UseReply],
    ) -> fleet.UseReply:
        """Take when models were used."""
        for use in request.models:
            self.reconciler.note_use(use.model_name, use.seconds_ago)
        return fleet.UseReply()

    async def SetServed(  # noqa: N802
        self,
        request: fleet.SetServedRequest,
        context: grpc.aio.ServicerContext[fleet.SetServedRequest, fleet.SetServedReply],
    ) -> fleet.SetServedReply:
        """Load a model, and wait for it, or unload one."""
        try:
            return await self.serving.set_served(
                request.model_name, is_served=request.is_served, who=request.who
            )
        except SmeltError as error:
            kinds = (kind for kind in type(error).__mro__ if kind in _CODE_BY_ERROR)
            code = _CODE_BY_ERROR.get(next(kinds, SmeltError), grpc.StatusCode.UNAVAILABLE)
            await context.abort(code, str(error))
