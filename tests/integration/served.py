"""One replica of a model behind a real gateway, both in this process."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from compiler_worker.building.pipeline import BuildReport
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.pb import fleet_v1_pb2 as fleet_pb
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.integration.gateway.conftest import Fleet


@dataclass(frozen=True, kw_only=True)
class Built:
    """A store with the model and its engine."""

    folder: Path
    store_url: str
    version: ModelVersion
    report: BuildReport
    registry: Registry


async def serve(
    stack: AsyncExitStack, folder: Path, store_url: str, version: ModelVersion
) -> Fleet:
    """Start both, with shared memory, until the stack is left."""
    settings = ReplicaSettings(
        store_url=store_url,
        cache_dir=folder / "cache",
        model=version.name,
        socket_dir=folder,
        num_threads=1,
    )
    replica = ReplicaServer(settings, NullRecorder())
    await replica.start()
    stack.push_async_callback(replica.stop, 0)
    parts = Fleet(stack, folder)
    await parts.controller.start()
    stack.push_async_callback(parts.controller.stop)
    await parts.start_gateway(shared_memory=True)
    parts.add_model(version)
    parts.controller.snapshot.replicas.add(
        replica_id="r1",
        model_name=version.name,
        model_version=version.version,
        state=fleet_pb.REPLICA_STATE_READY,
        addresses=replica.addresses,
        data_token=replica.token,
        host_id="here",
        engine_kind="onnxruntime",
    )
    await parts.until_ready("r1")
    return parts
