"""Short calls to controller and gateway, with their errors turned into ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.fleet_file import find_fleet
from services.cli.gateway_client import gateway_channel
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError
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


def find_controller(settings: CliSettings) -> str | None:
    """That of SMELT_CONTROLLER, else of this host's fleet where that is on this very store."""
    if settings.controller:
        return settings.controller
    running = find_fleet(settings.run_dir)
    if running is None or running.store_url != settings.store_url:
        return None
    return running.controller


def fleet_on_store(settings: CliSettings) -> fleet.FleetSnapshot | None:
    """The fleet that serves from this store, as its controller sees it; None without one.

    Raises:
        NotReadyError: the controller does not answer.
        InvalidRequestError: the one that was named works on another store.
    """
    address = find_controller(settings)
    if address is None:
        return None
    snapshot = get_fleet(address)
    if snapshot.store_url != settings.store_url:
        raise InvalidRequestError(
            f"controller {address} works on store {snapshot.store_url}, this command on "
            f"{settings.store_url}: set SMELT_STORE_URL to the former"
        )
    return snapshot


def tell_fleet(settings: CliSettings) -> bool:
    """Have the fleet on this store look at it now; returns whether there is one.

    Raises:
        NotReadyError: its controller does not answer.
    """
    address = find_controller(settings)
    if address is None:
        return False
    with _control(address) as stub:
        stub.Reconcile(fleet.ReconcileRequest(), timeout=CALL_TIMEOUT_S)
    return True


def watch_fleet(address: str, timeout_s: float) -> Iterator[fleet.FleetSnapshot]:
    """The whole fleet now and after each change, until the time is over.

    Raises:
        NotReadyError: the controller is gone, or the time ran out.
    """
    with _control(address) as stub:
        request = fleet.WatchEndpointsRequest(gateway_id="smelt")
        yield from stub.WatchEndpoints(request, timeout=timeout_s)


def wait_served(settings: CliSettings, grpc_address: str, model: str, timeout_s: float) -> None:
    """Return once a gateway can ask a model.

    Raises:
        NotReadyError: the gateway is gone, or the time ran out.
    """
    request = health_pb2.HealthCheckRequest(service=model)
    with gateway_channel(settings, grpc_address) as channel:
        try:
            for answer in health_pb2_grpc.HealthStub(channel).Watch(request, timeout=timeout_s):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        except grpc.RpcError as error:
            raise NotReadyError(
                f"gateway {grpc_address} cannot ask model '{model}': {error.details()}"
            ) from error
    raise NotReadyError(f"gateway {grpc_address} stopped before it could ask model '{model}'")
