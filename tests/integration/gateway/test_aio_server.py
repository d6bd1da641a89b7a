"""The gateway behind gRPC's own server, as SMELT_GATEWAY_SERVER=grpc makes it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.errors import InvalidRequestError
from tests.certificates import Authority
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


@pytest.fixture
async def fleet(echo_fleet: "Fleet") -> "Fleet":
    """Two replicas of `echo`, and a second gateway before them."""
    await echo_fleet.start_gateway(server="grpc")
    await echo_fleet.until_ready("r1", "r2")
    return echo_fleet


async def test_requests_are_answered_and_refused_as_ever(fleet: "Fleet", inputs: Inputs) -> None:
    client = await fleet.client()
    assert (await client.infer("echo", inputs(3.0))).as_numpy("y")[0, 0] == 3
    with pytest.raises(InferenceServerException, match="'nothing'") as caught:
        await client.infer("nothing", inputs())
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    assert (await client.get_model_metadata("echo")).name == "echo"


async def test_a_large_answer_is_sent_too(fleet: "Fleet", inputs: Inputs) -> None:
    """It comes from the replica as a view of the memory that it was read into."""
    result = await (await fleet.client()).infer("echo", inputs(3.0, 50_000))
    assert result.as_numpy("y").shape == (50_000, 4)


async def test_streams_keep_the_order_of_their_requests(fleet: "Fleet", inputs: Inputs) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(20):
            yield {"model_name": "echo", "inputs": inputs(float(number))}

    client = await fleet.client()
    found = [each async for each in client.stream_infer(requests())]
    assert [error for _, error in found if error] == []
    assert [float(result.as_numpy("y")[0, 0]) for result, _ in found] == list(range(20))


async def test_health_and_reflection(fleet: "Fleet") -> None:
    async with grpc.aio.insecure_channel(fleet.url) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="echo"))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING

    def services() -> list[str]:
        with grpc.insecure_channel(fleet.url) as channel:
            return list(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert "inference.GRPCInferenceService" in await asyncio.to_thread(services)


async def test_a_port_that_is_taken_is_refused_with_words(fleet: "Fleet") -> None:
    with pytest.raises(InvalidRequestError, match="cannot listen on .*SMELT_GATEWAY_GRPC_PORT"):
        await fleet.start_gateway(server="grpc", grpc_port=fleet.gateway.port)


async def test_tls_with_certificates_of_clients(
    echo_fleet: "Fleet", tmp_path: Path, inputs: Inputs
) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    files, mine = authority.sign("gateway"), clients.sign("ada")
    await echo_fleet.start_gateway(
        server="grpc",
        tls_cert_file=files.cert,
        tls_key_file=files.key,
        tls_client_ca_file=clients.cert,
    )
    await echo_fleet.until_ready("r1", "r2")
    known = {"private_key": str(mine.key), "certificate_chain": str(mine.cert)}
    for more, is_served in ((known, True), ({}, False)):
        async with InferenceServerClient(
            echo_fleet.url, ssl=True, root_certificates=str(authority.cert), **more
        ) as client:
            if is_served:
                assert await client.infer("echo", inputs())
            else:
                with pytest.raises(InferenceServerException):
                    await client.infer("echo", inputs())
