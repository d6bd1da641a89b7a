"""What stands behind a gateway that is measured alone: one replica's data port, and who lists it.

    python -m tests.benchmarks.dataplane.backend

Prints one line, the address of the controller's service, and runs until its input ends. It
answers as the no-op model of `payloads.py` does, without an engine or a batcher.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from services.contracts.frames import InferFrame
from services.contracts.hardware import DeviceFacts
from services.contracts.manifest import MasterRecord, ModelVersion
from services.contracts.recipe import Recipe
from services.controller.fleet_state import FleetState
from services.gateway.allocator import keep_freed_memory
from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc
from services.replica.data_server import DataServer
from tests.benchmarks.dataplane.payloads import answer
from tests.documents import AT

MODEL, HOST_ID = "tok", "backend"
TOKEN = b"t" * 32


class Controller(fleet_grpc.FleetControlServicer):
    """Lists one model and one replica."""

    def __init__(self, replica: fleet.ReplicaReport) -> None:
        self._state = FleetState("", os.getpid())
        self._state.set_model(
            fleet.ServedModel(name=MODEL, version=1, model_version_json=_model().canonical_json())
        )
        self._state.attach(replica)

    async def WatchEndpoints(  # noqa: N802 - the proto's name
        self, request: fleet.WatchEndpointsRequest, context: Any
    ) -> AsyncIterator[fleet.FleetSnapshot]:
        """The fleet, which never changes."""
        async for snapshot in self._state.watch():
            yield snapshot


def _model() -> ModelVersion:
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=0
    )
    return ModelVersion(
        name=MODEL,
        version=1,
        master=master,
        recipe=Recipe(),
        source="",
        source_fingerprint="",
        created_at=AT,
    )


async def _infer(frame: InferFrame) -> bytes:
    return await answer(bytes(frame.request))


async def _statistics() -> bytes:
    return b""


async def serve() -> None:
    """Serve until the input ends."""
    data = DataServer(_infer, _statistics, token=TOKEN)
    address = await data.listen("127.0.0.1:0")
    report = fleet.ReplicaReport(
        replica_id="r",
        model_name=MODEL,
        model_version=1,
        state=fleet.REPLICA_STATE_READY,
        addresses=[address],
        data_token=TOKEN,
        host_id=HOST_ID,
        device_facts_json=DeviceFacts(generation="cpu-any", name="", memory_gib=1).canonical_json(),
    )
    server = grpc.aio.server()
    controller = Controller(report)  # type: ignore[abstract] # nobody asks for the rest
    fleet_grpc.add_FleetControlServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await data.close()
    await server.stop(None)


if __name__ == "__main__":
    keep_freed_memory()
    uvloop.run(serve())
