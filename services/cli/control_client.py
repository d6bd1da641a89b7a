"""Short calls to the controller, with its errors turned into ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from services.contracts.errors import NotReadyError
from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc

CALL_TIMEOUT_S = 10.0


@contextmanager
def _control(address: str) -> Iterator[fleet_grpc.FleetControlStub]:
    with grpc.insecure_channel(address) as channel:
        try:
            yield fleet_grpc.FleetControlStub(channel)
        except grpc.RpcError as error:
            raise NotReadyError(f"controller at {address}: {error.details()}") from error


def get_fleet(address: str) -> fleet.FleetSnapshot:
    """The whole fleet; raises NotReadyError when the controller does not answer."""
    with _control(address) as stub:
        return stub.GetFleet(fleet.GetFleetRequest(), timeout=CALL_TIMEOUT_S)


def reconcile(address: str) -> None:
    """Have the controller read the store now."""
    with _control(address) as stub:
        stub.Reconcile(fleet.ReconcileRequest(), timeout=CALL_TIMEOUT_S)


def watch_fleet(address: str, timeout_s: float) -> Iterator[fleet.FleetSnapshot]:
    """The whole fleet now and after each change, until the time is over.

    Raises:
        NotReadyError: the controller is gone, or the time ran out.
    """
    with _control(address) as stub:
        request = fleet.WatchEndpointsRequest(gateway_id="smelt")
        yield from stub.WatchEndpoints(request, timeout=timeout_s)
