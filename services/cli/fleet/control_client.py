"""Short calls to controller and gateway, with their errors turned into ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.cli.fleet.fleet_file import find_fleet
from services.cli.output.show import print_warning
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.security.fleet_dialer import FleetDialer
from services.contracts.security.fleet_security import FleetSecuritySettings
from services.pb import fleet_v1_pb2 as fleet

if TYPE_CHECKING:
    from services.pb import fleet_v1_pb2_grpc as fleet_grpc

CALL_TIMEOUT_S = 10.0
_TLS_HINT = "; if it wants the fleet's TLS, set SMELT_FLEET_CERT_FILE, _KEY_FILE and _CA_FILE"
Metadata = tuple[tuple[str, str], ...]


@contextmanager
def _control(
    address: str, settings: FleetSecuritySettings | None
) -> Iterator[tuple["fleet_grpc.FleetControlStub", Metadata]]:
    """A stub, and the metadata that its calls carry."""
    # Commands that need no fleet start sooner without gRPC.
    import grpc

    from services.pb import fleet_v1_pb2_grpc as fleet_grpc

    dialer = FleetDialer.of(settings) if settings else FleetDialer()
    with dialer.channel(address) as channel:
        try:
            yield fleet_grpc.FleetControlStub(channel), dialer.metadata()
        except grpc.RpcError as error:
            # In the clear, a port with TLS looks like one that nothing listens on.
            is_away = error.code() is grpc.StatusCode.UNAVAILABLE
            hint = _TLS_HINT if is_away and dialer.tls is None else ""
            raise NotReadyError(f"controller at {address}: {error.details()}{hint}") from error


def get_fleet(address: str, settings: FleetSecuritySettings | None = None) -> fleet.FleetSnapshot:
    """The whole fleet; without settings, without TLS and token.

    Raises:
        NotReadyError: the controller does not answer, or refuses the token.
    """
    with _control(address, settings) as (stub, metadata):
        return stub.GetFleet(fleet.GetFleetRequest(), timeout=CALL_TIMEOUT_S, metadata=metadata)


def lacks_models(snapshot: fleet.FleetSnapshot) -> bool:
    """Whether it may list no model only because the controller cannot read the store."""
    return bool(snapshot.fault) and not snapshot.models


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
        NotReadyError: the controller does not answer, or cannot read which models there are.
        InvalidRequestError: the one that was named works on another store.
    """
    address = find_controller(settings)
    if address is None:
        return None
    snapshot = get_fleet(address, settings)
    if snapshot.store_url != settings.store_url:
        raise InvalidRequestError(
            f"controller {address} uses store {snapshot.store_url}, this command on "
            f"{settings.store_url}: set SMELT_STORE_URL to the former"
        )
    if lacks_models(snapshot):
        raise NotReadyError(f"controller at {address} lists no models: {snapshot.fault}")
    return snapshot


def notify_fleet(settings: CliSettings) -> bool:
    """Have the fleet on this store reconcile with it now; returns whether there is one.

    A controller that does not answer is a warning on standard error and no failure: what was
    written is in the store, which each controller reads periodically.
    """
    address = find_controller(settings)
    if address is None:
        return False
    try:
        reconcile(address, settings)
    except NotReadyError as error:
        print_warning(
            f"written to the store, but the fleet does not act on it yet: {error}. Its controller "
            "reads the store periodically; smelt status shows what prevents that"
        )
    return True


def reconcile(address: str, settings: FleetSecuritySettings) -> None:
    """Have a controller compare store and fleet now, and return when it did.

    Raises:
        NotReadyError: it does not answer.
    """
    with _control(address, settings) as (stub, metadata):
        stub.Reconcile(fleet.ReconcileRequest(), timeout=CALL_TIMEOUT_S, metadata=metadata)


def watch_fleet(
    address: str, timeout_s: float, settings: FleetSecuritySettings | None = None
) -> Iterator[fleet.FleetSnapshot]:
    """The whole fleet now and after each change, until the time is over.

    Args:
        address: `host:port` of the controller.
        timeout_s: of the whole watch.
        settings: TLS and token of the fleet; None without.

    Raises:
        NotReadyError: the controller is gone, or the time ran out.
    """
    with _control(address, settings) as (stub, metadata):
        request = fleet.WatchEndpointsRequest(gateway_id="smelt")
        yield from stub.WatchEndpoints(request, timeout=timeout_s, metadata=metadata)


def wait_served(settings: CliSettings, grpc_address: str, model: str, timeout_s: float) -> None:
    """Return once the gateway's health service says SERVING for a model.

    Args:
        settings: TLS and token for the gateway.
        grpc_address: `host:port` of the gateway.
        model: its name.
        timeout_s: for the whole wait.

    Raises:
        NotReadyError: the gateway is gone, or the time ran out.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from services.cli.requests.gateway_client import gateway_channel

    request = health_pb2.HealthCheckRequest(service=model)
    with gateway_channel(settings, grpc_address) as channel:
        try:
            for answer in health_pb2_grpc.HealthStub(channel).Watch(request, timeout=timeout_s):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        except grpc.RpcError as error:
            raise NotReadyError(
                f"gateway {grpc_address} cannot reach model '{model}': {error.details()}"
            ) from error
    raise NotReadyError(f"gateway {grpc_address} stopped before it could reach model '{model}'")
