"""Every RPC of the protos is answered by us: none falls through to what is generated."""

from contextlib import suppress
from typing import NoReturn

import grpc
import pytest

from services.contracts.errors import NotFoundError
from services.controller.api.fleet_control import FleetControl
from services.gateway.api.handlers import offered_handlers, service_handler
from services.gateway.api.metadata import EXTENSIONS, MetadataServicer
from services.gateway.api.service import SERVICE
from services.gateway.api.status_codes import StatusTable
from services.gateway.pipeline.admission import Bound
from services.gateway.pipeline.inference import InferenceCall
from services.gateway.routing.endpoints import EndpointSet
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb
from services.pb.fleet_v1_pb2_grpc import FleetControlServicer

# With what Triton offers beyond it and has no word for.
CORE = {
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelInfer",
    "ModelStreamInfer",
    "RepositoryIndex",
}
# What each word that ServerMetadata may list promises beyond the core.
PROMISED_BY = {
    "binary_tensor_data": set[str](),
    "classification": set[str](),
    "schedule_policy": set[str](),
    "model_configuration": {"ModelConfig"},
    "statistics": {"ModelStatistics"},
}


def test_the_controller_implements_every_rpc_of_its_proto() -> None:
    methods = fleet.DESCRIPTOR.services_by_name["FleetControl"].methods
    assert len(methods) == 6
    for method in methods:
        ours, generated = (getattr(c, method.name) for c in (FleetControl, FleetControlServicer))
        assert ours is not generated, method.name


class NoModel:
    """A station that knows no model."""

    async def answer(self, call: InferenceCall) -> bytes:
        """Refuse."""
        raise NotFoundError("no such model")


def _connect_to_none(*_: object) -> NoReturn:
    raise AssertionError("there are no replicas")


def handlers_of(bound: Bound | None) -> "grpc.GenericRpcHandler":  # type: ignore[type-arg]
    endpoints = EndpointSet(host_id="", connect=_connect_to_none)
    statuses = StatusTable()
    questions = MetadataServicer(endpoints, ("smelt", "1"), lambda *_: pb.ModelStatistics())
    offered = offered_handlers(NoModel(), questions, statuses, bound=bound)
    return service_handler(offered, statuses)


@pytest.fixture
def handlers() -> "grpc.GenericRpcHandler":  # type: ignore[type-arg]  # generic for mypy alone
    return handlers_of(None)


async def test_questions_have_a_bound_and_probes_have_none() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers_of(Bound(0, "this gateway", "MAX_IN_FLIGHT")),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    refused = set()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in SERVICE.methods:
                code = await _code(channel, f"/{SERVICE.full_name}/{method.name}")
                if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    refused.add(method.name)
    finally:
        await server.stop(None)
    assert {"ModelMetadata", "ModelStatistics", "RepositoryIndex"} <= refused
    assert not {"ServerLive", "ServerReady"} & refused


async def test_the_gateway_answers_what_it_promises_and_refuses_the_rest(
    handlers: "grpc.GenericRpcHandler",  # type: ignore[type-arg]
) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    offered = set()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in SERVICE.methods:
                path = f"/{SERVICE.full_name}/{method.name}"
                if await _code(channel, path) is not grpc.StatusCode.UNIMPLEMENTED:
                    offered.add(method.name)
    finally:
        await server.stop(None)
    assert offered == CORE.union(*(PROMISED_BY[word] for word in EXTENSIONS))


async def _code(channel: grpc.aio.Channel, path: str) -> grpc.StatusCode:
    """The status of a call without content."""
    is_stream = SERVICE.methods_by_name[path.rpartition("/")[2]].client_streaming
    if is_stream:
        call = channel.stream_stream(path)(iter([b""]), timeout=30)
        # The end comes behind the answers.
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        return await call.code()
    return await channel.unary_unary(path)(b"", timeout=30).code()
