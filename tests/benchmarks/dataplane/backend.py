"""What stands behind a gateway that is measured alone: replicas' data ports, and who lists them.

    python -m tests.benchmarks.dataplane.backend [REPLICAS]

Prints one line, the address of the controller's service, and runs until its input ends. Each
replica is a process, and answers as the no-op model of `payloads.py` does, without an engine or
a batcher.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import uvloop

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.transport.frames import InferFrame
from services.controller.api.fleet_state import FleetState
from services.gateway.allocator import keep_freed_memory
from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc
from services.replica.transport.data_server import DataServer
from tests.benchmarks.dataplane.launch import line_of
from tests.benchmarks.dataplane.payloads import answer
from tests.documents import AT

MODEL, HOST_ID, REPLICA = "tok", "backend", "replica"
TOKEN = b"t" * 32


class Controller(fleet_grpc.FleetControlServicer):
    """Lists one model and its replicas."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._state = FleetState("", os.getpid())
        self._state.set_model(
            fleet.ServedModel(name=MODEL, version=1, model_version_json=_model().canonical_json())
        )
        for number, address in enumerate(addresses):
            self._state.attach(_report(f"r{number}", address))

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


def _report(replica_id: str, address: str) -> fleet.ReplicaReport:
    facts = DeviceFacts(generation="cpu-any", name="", memory_gib=1)
    return fleet.ReplicaReport(
        replica_id=replica_id,
        model_name=MODEL,
        model_version=1,
        state=fleet.REPLICA_STATE_READY,
        addresses=[address],
        data_token=TOKEN,
        host_id=HOST_ID,
        device_facts_json=facts.canonical_json(),
    )


async def serve_replica() -> None:
    """Serve one data port until the input ends."""
    data = DataServer(_infer, _statistics, token=TOKEN)
    print(await data.listen("127.0.0.1:0"), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await data.close()


async def serve(addresses: Sequence[str]) -> None:
    """Serve the list of these replicas until the input ends."""
    server = grpc.aio.server()
    controller = Controller(addresses)  # type: ignore[abstract] # nobody asks for the rest
    fleet_grpc.add_FleetControlServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def main(arguments: Sequence[str]) -> None:
    """Run one replica, or the list of so many that are started here."""
    if arguments == [REPLICA]:
        keep_freed_memory()
        uvloop.run(serve_replica())
        return
    with ExitStack() as stack:
        replicas = [stack.enter_context(_started()) for _ in range(int(*arguments or "1"))]
        uvloop.run(serve([line_of(replica) for replica in replicas]))


def _started() -> "subprocess.Popen[str]":
    """A replica; leaving its context ends its input, and waits for it."""
    command = [sys.executable, "-m", "tests.benchmarks.dataplane.backend", REPLICA]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main(sys.argv[1:])
