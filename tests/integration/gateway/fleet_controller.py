"""The controller of gateway tests: it streams what the test publishes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc

_UNLOADED = ("UNAVAILABLE", "unloaded")


class Controller(fleet_grpc.FleetControlServicer):
    """FleetControl that streams whatever the test publishes."""

    def __init__(self) -> None:
        self.port = 0
        self.snapshot = fleet.FleetSnapshot(epoch=1)
        self.asked_to_serve: list[tuple[str, bool]] = []
        self.who_asked: list[str] = []
        self.why_not_ready = ""
        self.uses: asyncio.Queue[dict[str, float]] = asyncio.Queue()
        self.is_silent = self.is_late = False
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Listen; on the former port when there was one."""
        self._server = grpc.aio.server()
        fleet_grpc.add_FleetControlServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Die: every watch breaks."""
        if self._server:
            await self._server.stop(None)

    def publish(self) -> None:
        """Send the snapshot to everyone who watches."""
        self.snapshot.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def SetServed(  # noqa: N802
        self, request: fleet.SetServedRequest, context: Any
    ) -> fleet.SetServedReply:
        """Mark the model's versions, as the controller does once the store has it."""
        self.asked_to_serve.append((request.model_name, request.is_served))
        self.who_asked.append(request.who)
        if self.is_silent:
            await asyncio.Event().wait()
        found = [model for model in self.snapshot.models if model.name == request.model_name]
        if not found:
            details = f"model '{request.model_name}' not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, details)
        for model in found:
            model.is_unloaded = not request.is_served
            model.state, model.reason = ("READY", "") if request.is_served else _UNLOADED
        if not self.is_late:
            self.publish()
        is_ready = request.is_served and not self.why_not_ready
        return fleet.SetServedReply(is_ready=is_ready, reason=self.why_not_ready)

    async def ReportUse(  # noqa: N802
        self, request: fleet.UseReport, context: Any
    ) -> fleet.UseReply:
        """Note which models were used, and how long ago."""
        self.uses.put_nowait({use.model_name: use.seconds_ago for use in request.models})
        return fleet.UseReply()

    async def WatchEndpoints(  # noqa: N802 - the generated base names it
        self, request: fleet.WatchEndpointsRequest, context: Any
    ) -> AsyncIterator[fleet.FleetSnapshot]:
        """The snapshot now and after each change."""
        while True:
            changed = self._changed
            yield self.snapshot
            await changed.wait()
