"""A controller's port that says one thing, for commands that ask a fleet."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from services.contracts.hardware.facts import DeviceFacts
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world

HERE = DeviceFacts(generation=world.GENERATION, name="x", memory_gib=1).canonical_json()


@contextmanager
def fleet_saying(snapshot: fleet.FleetSnapshot) -> Iterator[str]:
    """The address of a controller that says this."""
    get_fleet = grpc.unary_unary_rpc_method_handler(
        lambda request, context: snapshot,
        request_deserializer=fleet.GetFleetRequest.FromString,
        response_serializer=fleet.FleetSnapshot.SerializeToString,
    )
    service = fleet.DESCRIPTOR.services_by_name["FleetControl"].full_name
    handler = grpc.method_handlers_generic_handler(service, {"GetFleet": get_fleet})
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def replica(version: int, digest: str = "", **changes: Any) -> fleet.ReplicaReport:
    """A ready replica of model `m`."""
    fields: dict[str, Any] = {
        "replica_id": f"r{version}",
        "model_name": "m",
        "model_version": version,
        "state": fleet.REPLICA_STATE_READY,
        "device_facts_json": HERE,
        "engine_digest": digest,
        "fallback_reason": "" if digest else "no_engine",
        "fallback_name": "" if digest else "torch.compile",
    }
    return fleet.ReplicaReport(**fields | changes)


def build(model: str, version: int = 1, started_at: str = "", **changes: Any) -> fleet.FleetBuild:
    """A build on the nodes of the small world; without a time, one that waits."""
    fields: dict[str, Any] = {
        "model_name": model,
        "model_version": version,
        "generation": world.GENERATION,
        "node_class": world.NODE_CLASS.digest(),
        "started_at": started_at,
        "reason": "1 to build" if started_at else "first build for these nodes",
    }
    return fleet.FleetBuild(**fields | changes)
