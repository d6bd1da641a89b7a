"""A real gateway between a real controller service, real data ports and real clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.transport.frames import NO_TOKEN, InferFrame
from services.gateway.server import GatewayServer
from services.gateway.settings import GatewaySettings
from services.gateway.upstream.endpoint import Endpoint
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb
from services.replica.transport.data_server import DataServer
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.metric import Metric
from services.telemetry.prometheus_recorder import PrometheusRecorder
from services.telemetry.tracing import Tracing
from tests.integration.gateway.fleet_controller import Controller
from tests.integration.grpc_server.frames import body, headers, message, request_fields
from tests.integration.grpc_server.raw_client import RawClient

DEVICE = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=8)
TENSOR = TensorSpec(name="x", datatype="FP32", shape=("batch", 4))
INFER = "/inference.GRPCInferenceService/ModelInfer"
Answer = Callable[[InferFrame], Awaitable[bytes]]


def model_version(name: str = "echo", version: int = 1) -> ModelVersion:
    """A model with one input and one output of [batch, 4], batches up to 8."""
    output = TensorSpec(name="y", datatype="FP32", shape=("batch", 4))
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=(TENSOR,), outputs=(output,), opset=23, num_parameters=0
    )
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)})
    return ModelVersion(
        name=name,
        version=version,
        master=master,
        recipe=Recipe(buckets=(bucket,)),
        source="test",
        source_fingerprint="f",
        created_at="2025-01-01T00:00:00Z",
    )


@dataclass(kw_only=True)
class ReplicaServer:
    """A data port and what it was asked; `answer` may be replaced by a test."""

    name: str
    model: str
    version: str
    num_requests: int = 0
    frames: list[InferFrame] = field(default_factory=list)
    answer: Answer | None = None
    token: bytes = NO_TOKEN
    server: DataServer = field(init=False)
    dying: asyncio.Task[None] | None = None
    count: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.server = DataServer(self._infer, self._statistics, token=self.token)

    async def _infer(self, frame: InferFrame) -> bytes:
        self.num_requests += 1
        self.frames.append(frame)
        return await (self.answer or self.echo)(frame)

    async def echo(self, frame: InferFrame) -> bytes:
        """The input as output `y`, with the replica's name among the parameters."""
        request = pb.ModelInferRequest.FromString(bytes(frame.request))
        response = pb.ModelInferResponse(
            model_name=self.model,
            model_version=self.version,
            id=request.id,
            raw_output_contents=request.raw_input_contents,
        )
        response.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
        response.parameters["replica"].string_param = self.name
        return response.SerializeToString()

    async def _statistics(self) -> bytes:
        if self.count:
            await self.count()
        duration = pb.StatisticDuration(count=self.num_requests, ns=1000 * self.num_requests)
        stats = pb.InferStatistics(
            success=duration,
            queue=duration,
            compute_input=duration,
            compute_infer=duration,
            compute_output=duration,
        )
        return pb.ModelStatistics(
            inference_count=self.num_requests,
            execution_count=self.num_requests,
            inference_stats=stats,
        ).SerializeToString()

    def die(self) -> None:
        """Break every connection in the middle of whatever it does; listen no longer."""
        for connection in list(self.server.connections):
            connection.abort()
        self.dying = self.dying or asyncio.create_task(self.server.close())

    async def come_back(self, address: str, token: bytes | None = None) -> None:
        """Listen there as a new process does, with a token of its own if it is a stranger."""
        assert self.dying is not None
        await self.dying
        self.dying = None
        self.server = DataServer(self._infer, self._statistics, token=token or self.token)
        await self.server.listen(address)

    async def close(self) -> None:
        """Listen no longer."""
        if self.dying is not None:
            await self.dying
        await self.server.close()


class WatchedRecorder(PrometheusRecorder):
    """Tells when something was recorded; tests wait for that."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(GATEWAY_METRICS, registry)
        self.recorded = asyncio.Event()

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        super().count(metric, amount, **labels)
        self.recorded.set()

    def adder(self, metric: Metric, **labels: str) -> Callable[[], None]:
        """What adds one to a counter."""
        return lambda: self.count(metric, **labels)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        super().set(metric, value, **labels)
        self.recorded.set()


class Fleet:
    """Everything a test touches: controller, replicas, one gateway, clients of it."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.controller = Controller()
        self.registry = CollectorRegistry()
        self.recorder = WatchedRecorder(self.registry)
        self.gateway: GatewayServer
        self.replicas: dict[str, ReplicaServer] = {}
        self._stack, self._folder = stack, folder

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.gateway.port}"

    async def start_gateway(self, tracing: Tracing | None = None, **settings: Any) -> None:
        """A gateway on a free port that follows the controller."""
        given = {
            "grpc_port": 0,
            "metrics_port": 0,
            "controller": f"127.0.0.1:{self.controller.port}",
            "host_id": "here",
            "drain_grace_s": 1.0,
        }
        self.gateway = GatewayServer(GatewaySettings(**given | settings), self.recorder, tracing)
        await self.gateway.start()
        self._stack.push_async_callback(self.gateway.stop)

    def add_model(self, model: ModelVersion, reason: str = "") -> None:
        """Let the controller serve a model; takes effect with `publish`."""
        self.controller.snapshot.models.add(
            name=model.name,
            version=model.version,
            model_version_json=model.canonical_json(),
            reason=reason,
        )

    async def add_replica(
        self,
        name: str,
        model: str = "echo",
        version: int = 1,
        *,
        host_id: str = "here",
        token: bytes = b"t" * 32,
    ) -> ReplicaServer:
        """A data port on a unix socket and on TCP, reported as ready; not published yet."""
        replica = ReplicaServer(name=name, model=model, version=str(version), token=token)
        self.replicas[name] = replica
        unix = await replica.server.listen(f"unix:{self._folder / name}")
        tcp = await replica.server.listen("127.0.0.1:0")
        self._stack.push_async_callback(replica.close)
        self.controller.snapshot.replicas.add(
            replica_id=name,
            model_name=model,
            model_version=version,
            state=fleet.REPLICA_STATE_READY,
            addresses=[unix, tcp],
            data_token=token,
            host_id=host_id,
            device_facts_json=DEVICE.canonical_json(),
            engine_kind="openvino",
            engine_digest="e" * 8,
        )
        return replica

    def report_of(self, name: str) -> fleet.ReplicaReport:
        """A replica's report inside the controller's snapshot."""
        (report,) = (r for r in self.controller.snapshot.replicas if r.replica_id == name)
        return report

    async def client(self) -> InferenceServerClient:
        """An unmodified Triton client."""
        return await self._stack.enter_async_context(InferenceServerClient(self.url))

    async def status_in(self, grpc_timeout: str, request: bytes) -> int | None:
        """How ModelInfer ends with this grpc-timeout, for a client that has no clock of its own.

        Of a usual client's clock and the gateway's, either may be first, and what the gateway then
        counts is a cancelled call.
        """
        client = await RawClient.dial(self.gateway.port)
        try:
            fields = dict(request_fields(more=[("grpc-timeout", grpc_timeout)])) | {":path": INFER}
            sent = headers(1, fields.items()) + body(1, message(request))
            return (await client.ask(sent)).status
        finally:
            client.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the gateway's routing table fulfils a condition."""
        async with asyncio.timeout(30):
            while not condition():
                await self.gateway.endpoints.changed.wait()

    async def until_ready(self, *names: str) -> None:
        """Publish, then wait until exactly these replicas can be asked."""
        self.controller.publish()
        await self.until(lambda: self.routed() == set(names))

    def endpoints(self) -> dict[str, Endpoint]:
        """Those that the gateway would ask, by replica."""
        return {e.replica.replica_id: e for peers in self.gateway.endpoints.peers() for e in peers}

    def routed(self) -> set[str]:
        """Ids of the replicas that the gateway would ask."""
        return set(self.endpoints())

    async def until_metric(self, value: float, name: str, **labels: str) -> None:
        """Wait until a series has a value: the client may know the outcome first."""
        async with asyncio.timeout(30):
            while self.metric(name, **labels) != value:
                self.recorder.recorded.clear()
                await self.recorder.recorded.wait()

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series."""
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def fleet_of(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A controller and a gateway; no model, no replica."""
    async with AsyncExitStack() as stack:
        parts = Fleet(stack, tmp_path)
        await parts.controller.start()
        stack.push_async_callback(parts.controller.stop)
        await parts.start_gateway()
        yield parts


@pytest.fixture
async def echo_fleet(fleet_of: Fleet) -> Fleet:
    """Two replicas of `echo`, both ready."""
    fleet_of.add_model(model_version())
    await fleet_of.add_replica("r1")
    await fleet_of.add_replica("r2")
    await fleet_of.until_ready("r1", "r2")
    return fleet_of


def make_inputs(value: float = 1.0, rows: int = 1) -> list[InferInput]:
    """One input x of [rows, 4] filled with a value."""
    tensor = InferInput("x", [rows, 4], "FP32")
    tensor.set_data_from_numpy(np.full((rows, 4), value, np.float32))
    return [tensor]


@pytest.fixture
def inputs() -> Callable[..., list[InferInput]]:
    return make_inputs


@pytest.fixture
def new_model() -> Callable[..., ModelVersion]:
    return model_version
