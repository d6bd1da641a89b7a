"""Every RPC beside inference, asked by unmodified Triton, health and reflection clients."""

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.utils import InferenceServerException

from services.pb import fleet_v1_pb2 as fleet

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_server_questions(echo_fleet: "Fleet") -> None:
    client = await echo_fleet.client()
    assert await client.is_server_live()
    assert await client.is_server_ready()
    metadata = await client.get_server_metadata()
    assert metadata.name == "smelt"
    assert metadata.version
    assert list(metadata.extensions) == [
        "binary_tensor_data",
        "classification",
        "model_configuration",
        "schedule_policy",
        "statistics",
    ]


async def test_an_empty_fleet_is_live_and_not_ready(fleet_of: "Fleet") -> None:
    client = await fleet_of.client()
    assert await client.is_server_live()
    assert not await client.is_server_ready()


async def test_a_server_with_one_broken_model_is_not_ready(
    echo_fleet: "Fleet", new_model: Callable[..., Any]
) -> None:
    echo_fleet.add_model(new_model("broken"))
    echo_fleet.controller.publish()
    await echo_fleet.until(lambda: "broken" in echo_fleet.gateway.endpoints.table.view.models)
    client = await echo_fleet.client()
    assert not await client.is_server_ready()
    assert await client.is_model_ready("echo")


@pytest.mark.parametrize(
    ("model", "version", "is_ready"),
    [("echo", "", True), ("echo", "1", True), ("echo", "2", False), ("nope", "", False)],
)
async def test_model_ready_answers_false_for_the_unknown(
    echo_fleet: "Fleet", model: str, version: str, is_ready: bool
) -> None:
    client = await echo_fleet.client()
    assert await client.is_model_ready(model, version) is is_ready


async def test_model_metadata(echo_fleet: "Fleet") -> None:
    client = await echo_fleet.client()
    found = await client.get_model_metadata("echo", as_json=True)
    assert found == {
        "name": "echo",
        "versions": ["1"],
        "platform": "smelt_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": ["-1", "4"]}],
    }


async def test_model_config(echo_fleet: "Fleet") -> None:
    client = await echo_fleet.client()
    config = (await client.get_model_config("echo")).config
    assert (config.name, config.max_batch_size) == ("echo", 8)
    assert list(config.input[0].dims) == [4]
    assert config.HasField("dynamic_batching")
    assert config.parameters["engine_kind"].string_value == "openvino"


@pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config"])
async def test_descriptions_of_unknown_models(echo_fleet: "Fleet", method: str) -> None:
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match="'nope' is not found") as caught:
        await getattr(client, method)("nope")
    assert caught.value.status() == "StatusCode.NOT_FOUND"


async def test_statistics_are_the_sum_over_replicas(
    echo_fleet: "Fleet", inputs: Callable[..., Any], new_model: Callable[..., Any]
) -> None:
    echo_fleet.add_model(new_model("idle"))
    echo_fleet.controller.publish()
    await echo_fleet.until(lambda: "idle" in echo_fleet.gateway.endpoints.table.view.models)
    client = await echo_fleet.client()
    await asyncio.gather(*(client.infer("echo", inputs()) for _ in range(20)))
    assert all(replica.num_requests for replica in echo_fleet.replicas.values())
    echo, idle = (await client.get_inference_statistics()).model_stats
    assert (echo.name, echo.version, echo.inference_count, echo.execution_count) == (
        ("echo", "1", 20, 20)
    )
    stats = echo.inference_stats
    assert (stats.success.count, stats.success.ns) == (20, 20_000)
    assert stats.compute_input.count == stats.compute_infer.count == stats.compute_output.count
    assert (idle.name, idle.version, idle.inference_count) == ("idle", "1", 0)
    assert idle.inference_stats.HasField("compute_infer")
    # What load generators read after a measurement may not be less than what they read before.
    echo_fleet.report_of("r1").state = fleet.REPLICA_STATE_DRAINING
    await echo_fleet.until_ready("r2")
    (echo,) = (await client.get_inference_statistics("echo")).model_stats
    assert (echo.inference_count, echo.inference_stats.success.count) == (20, 20)


async def test_statistics_leave_out_a_replica_that_does_not_answer(
    echo_fleet: "Fleet", monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr("services.gateway.api.fleet_statistics.ANSWER_TIMEOUT_S", 0.05)
    echo_fleet.replicas["r1"].server.statistics = hang
    client = await echo_fleet.client()
    (stats,) = (await client.get_inference_statistics("echo", "1")).model_stats
    assert (stats.name, stats.version) == ("echo", "1")
    with pytest.raises(InferenceServerException, match="'nope' is not found"):
        await client.get_inference_statistics("nope")


_ABSENT: dict[str, Callable[[Any], Any]] = {
    "RepositoryModelLoad": lambda client: client.load_model("echo"),
    "RepositoryModelUnload": lambda client: client.unload_model("echo"),
    "SystemSharedMemoryStatus": lambda client: client.get_system_shared_memory_status(),
    "SystemSharedMemoryRegister": lambda c: c.register_system_shared_memory("a", "/a", 1),
    "SystemSharedMemoryUnregister": lambda client: client.unregister_system_shared_memory(),
    "CudaSharedMemoryStatus": lambda client: client.get_cuda_shared_memory_status(),
    "CudaSharedMemoryRegister": lambda c: c.register_cuda_shared_memory("a", b"eA==", 0, 1),
    "CudaSharedMemoryUnregister": lambda client: client.unregister_cuda_shared_memory(),
    "TraceSetting": lambda client: client.get_trace_settings(),
    "LogSettings": lambda client: client.get_log_settings(),
}


@pytest.mark.parametrize("rpc", _ABSENT)
async def test_other_rpcs_say_that_they_are_not_offered(echo_fleet: "Fleet", rpc: str) -> None:
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match=f"{rpc} is not offered") as caught:
        await _ABSENT[rpc](client)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert re.search("SMELT_GATEWAY_[A-Z_]+=true|use system shared|nothing", caught.value.message())


async def _watch(channel: grpc.aio.Channel, name: str, status: int) -> None:
    """Return once a service has this status."""
    stub = health_pb2_grpc.HealthStub(channel)
    async with asyncio.timeout(30):
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=name)):
            if answer.status == status:
                return


async def test_health_follows_the_replicas(
    fleet_of: "Fleet", new_model: Callable[..., Any]
) -> None:
    async with grpc.aio.insecure_channel(fleet_of.url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        first = await stub.Check(health_pb2.HealthCheckRequest())
        assert first.status == NOT_SERVING
        fleet_of.add_model(new_model())
        await fleet_of.add_replica("r1")
        fleet_of.controller.publish()
        for name in ("", "echo", "inference.GRPCInferenceService"):
            await _watch(channel, name, SERVING)
        fleet_of.report_of("r1").state = fleet.REPLICA_STATE_DRAINING
        fleet_of.controller.publish()
        await _watch(channel, "echo", NOT_SERVING)
        await _watch(channel, "", NOT_SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="nope"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_each_watcher_of_a_name_is_told(
    fleet_of: "Fleet", new_model: Callable[..., Any]
) -> None:
    async with grpc.aio.insecure_channel(fleet_of.url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        question = health_pb2.HealthCheckRequest(service="echo")
        leaving, staying = stub.Watch(question), stub.Watch(question)
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        assert [(await w.read()).status for w in (leaving, staying)] == [unknown, unknown]
        leaving.cancel()
        fleet_of.add_model(new_model())
        fleet_of.controller.publish()
        assert (await asyncio.wait_for(staying.read(), 30)).status == NOT_SERVING
        await fleet_of.add_replica("r1")
        fleet_of.controller.publish()
        assert (await asyncio.wait_for(staying.read(), 30)).status == SERVING


async def test_reflection_describes_every_service(fleet_of: "Fleet") -> None:
    def ask() -> dict[str, bool]:
        with grpc.insecure_channel(fleet_of.url) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(database)
            names = list(database.get_services())
            return {name: bool(pool.FindServiceByName(name).methods) for name in names}

    found = await asyncio.to_thread(ask)
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= found.keys()
    assert all(found.values())


async def test_reflection_has_its_newer_name_too(fleet_of: "Fleet") -> None:
    """What a tool asks that knows `v1` alone; on the wire it is `v1alpha`."""
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    async with grpc.aio.insecure_channel(fleet_of.url) as channel:
        call = channel.stream_stream(
            path,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services="*"))
        services = (await call.read()).list_services_response.service
        pool = descriptor_pool.DescriptorPool()
        for service in services:
            asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=service.name)
            await call.write(asked)
            for file in (await call.read()).file_descriptor_response.file_descriptor_proto:
                pool.AddSerializedFile(file)
            assert pool.FindServiceByName(service.name).methods
        await call.done_writing()
    names = {service.name for service in services}
    assert {"inference.GRPCInferenceService", "grpc.reflection.v1.ServerReflection"} <= names


def reflect(channel: grpc.aio.Channel) -> Any:
    """A stream of questions to reflection."""
    return channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()


@pytest.mark.parametrize(
    ("symbol", "is_found"),
    [
        ("inference.GRPCInferenceService.ModelInfer", True),
        ("inference.GRPCInferenceService.Nothing", False),
        ("nothing.Service.Method", False),
        ("nothing", False),
    ],
)
async def test_reflection_describes_methods(fleet_of: "Fleet", symbol: str, is_found: bool) -> None:
    """As `grpcurl describe` asks for them; gRPC's own reflection knows no methods."""
    async with grpc.aio.insecure_channel(fleet_of.url) as channel:
        call = reflect(channel)
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        answer = await call.read()
        assert bool(answer.file_descriptor_response.file_descriptor_proto) == is_found
        assert answer.error_response.error_code == (0 if is_found else 5)
        await call.done_writing()


async def test_questions_have_a_bound_of_their_own(
    echo_fleet: "Fleet",
) -> None:
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def count() -> None:
        begun.set()
        await may_answer.wait()

    await echo_fleet.start_gateway(max_in_flight=1)
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()
    for replica in echo_fleet.replicas.values():
        replica.count = count
    running = asyncio.create_task(client.get_inference_statistics("echo"))
    await begun.wait()
    with pytest.raises(InferenceServerException, match="metadata service of this gate") as refused:
        await client.get_model_metadata("echo")
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert await client.is_server_live()
    may_answer.set()
    await running


async def test_reflection_has_a_bound_of_its_own(fleet_of: "Fleet") -> None:
    async with grpc.aio.insecure_channel(fleet_of.url) as channel:
        asked = reflection_pb2.ServerReflectionRequest(list_services="*")
        streams = [reflect(channel) for _ in range(64)]
        for stream in streams:
            await stream.write(asked)
            assert (await stream.read()).list_services_response.service
        late = reflect(channel)
        assert await late.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Nothing else waits for it, and what ends makes room.
        assert await (await fleet_of.client()).is_server_live()
        await streams[0].done_writing()
        assert await streams[0].code() is grpc.StatusCode.OK
        again = reflect(channel)
        await again.write(asked)
        assert (await again.read()).list_services_response.service
