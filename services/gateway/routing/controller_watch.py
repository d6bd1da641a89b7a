"""The stream of fleet snapshots, for as long as the gateway runs."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc

from services.contracts.process.backoff import Backoff
from services.contracts.security.fleet_dialer import FleetDialer
from services.pb import fleet_v1_pb2 as fleet
from services.pb.fleet_v1_pb2_grpc import FleetControlStub

if TYPE_CHECKING:
    from services.pb.fleet_v1_pb2_grpc import FleetControlAsyncStub

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0


class ControllerWatch:
    """Follows FleetControl.WatchEndpoints and hands on each snapshot.

    While the controller is away nothing is handed on: the last known fleet stays in force,
    and lost replicas are found by their own connections.
    """

    def __init__(
        self,
        address: str,
        gateway_id: str,
        on_snapshot: Callable[[fleet.FleetSnapshot], None],
        on_connected: Callable[[bool], None] = lambda _: None,
        dialer: FleetDialer | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            address: of the controller, `host:port`.
            gateway_id: is sent to the controller, for its log.
            on_snapshot: is called with each snapshot of the fleet.
            on_connected: is called with whether the controller is connected, first at the start.
            dialer: opens the connection; without it in the clear.
        """
        self._dialer = dialer or FleetDialer()
        self._last_fault = ""
        self._address = address
        self._gateway_id = gateway_id
        self._on_snapshot = on_snapshot
        self._on_connected = on_connected
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def run(self) -> None:
        """Watch until cancelled."""
        self._on_connected(False)
        while True:
            # A new one each time: certificates and tokens are rotated.
            async with self._dialer.aio_channel(self._address) as channel:
                try:
                    await self._follow(FleetControlStub(channel))
                    self._complain("closed the watch stream; keeping the last snapshot")
                except grpc.aio.AioRpcError as error:
                    self._complain(
                        "is unreachable; keeping the last snapshot: "
                        f"{error.code().name}: {error.details()}"
                    )
            self._on_connected(False)
            await self._backoff.pause()

    def _complain(self, fault: str) -> None:
        """One line for each fault, not for each try."""
        if fault != self._last_fault:
            logger.warning("controller %s %s", self._address, fault)
        self._last_fault = fault

    async def _follow(self, stub: "FleetControlAsyncStub") -> None:
        request = fleet.WatchEndpointsRequest(gateway_id=self._gateway_id)
        # In the clear, waiting for the connection is left to gRPC. It would try on with a
        # certificate that has expired meanwhile, so with TLS each try is ours.
        snapshots = stub.WatchEndpoints(
            request, wait_for_ready=self._dialer.tls is None, metadata=self._dialer.metadata()
        )
        async for snapshot in snapshots:
            self._last_fault = ""
            self._backoff.reset()
            self._on_connected(True)
            self._take(snapshot)

    def _take(self, snapshot: fleet.FleetSnapshot) -> None:
        """Hand a snapshot on; one that cannot be taken changes nothing."""
        try:
            self._on_snapshot(snapshot)
        except Exception:
            # An exception here would end the watch for good, and no later snapshot be seen.
            logger.exception(
                "snapshot revision %d of controller %s rejected; keeping the last one",
                snapshot.revision,
                self._address,
            )
