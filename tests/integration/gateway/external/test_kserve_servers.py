"""External KServe v2 servers behind a gateway, asked by unmodified Triton clients."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.external.dial import kserve_path
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.conftest import Fleet, make_inputs, model_version
from tests.integration.gateway.external.conftest import add_external, external_model
from tests.integration.gateway.external.kserve_server import KserveServer, kserve_server
from tests.integration.gateway.http.conftest import run_curl, with_http

if TYPE_CHECKING:
    from tritonclient.grpc import InferResult

COUNTED = "smelt_requests_total"


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Another Smelt, with a replica of `echo`."""
    async with AsyncExitStack() as stack:
        (tmp_path / "behind").mkdir()
        parts = Fleet(stack, tmp_path / "behind")
        await parts.controller.start()
        stack.push_async_callback(parts.controller.stop)
        await parts.start_gateway()
        parts.add_model(model_version())
        await parts.add_replica("r1")
        await parts.until_ready("r1")
        yield parts


async def test_another_smelt_is_asked_under_its_own_name(fleet_of: Fleet, behind: Fleet) -> None:
    model = external_model(f"grpc://{behind.url}", "vision", remote_name="echo")
    add_external(fleet_of, model)
    await with_http(fleet_of, "external vision/1")
    client = await fleet_of.client()
    answer = await client.infer("vision", make_inputs(3.0), request_id="mine")
    response = answer.get_response()
    assert (response.model_name, response.model_version, response.id) == ("vision", "1", "mine")
    assert answer.as_numpy("y")[0, 0] == 3.0
    assert (await client.infer("vision", make_inputs(), model_version="1")).as_numpy("y").any()
    metadata = await client.get_model_metadata("vision")
    assert (metadata.name, list(metadata.versions)) == ("vision", ["1"])
    assert [each.name for each in metadata.inputs] == ["x"]
    assert (await client.get_model_config("vision")).config.max_batch_size == 8
    assert await client.is_model_ready("vision")
    assert await client.is_server_ready()
    index = await client.get_model_repository_index()
    assert [(each.name, each.state) for each in index.models] == [("vision", "READY")]
    await fleet_of.until_metric(2, COUNTED, model="vision", version="1", code="OK")
    given = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
    got = await run_curl(fleet_of, "-d", given, "/v2/models/vision/infer")
    assert b'"model_name":"vision"' in got.body
    assert b'"data":[1.0,2.0,3.0,4.0]' in got.body
    add_external(fleet_of, external_model(model.url, "none"))
    await fleet_of.until_ready("external vision/1", "external none/1")
    with pytest.raises(InferenceServerException, match=r"'none'.*answers NOT_FOUND") as refused:
        await client.infer("none", make_inputs())
    assert refused.value.status() == "StatusCode.NOT_FOUND"


async def test_a_server_that_ended_is_named(fleet_of: Fleet, behind: Fleet) -> None:
    add_external(fleet_of, external_model(f"grpc://{behind.url}", "vision", remote_name="echo"))
    await fleet_of.until_ready("external vision/1")
    client = await fleet_of.client()
    await client.infer("vision", make_inputs())
    url = behind.url
    await behind.gateway.stop()
    with pytest.raises(InferenceServerException, match=f"'vision'.*{url} cannot be rea") as failed:
        await client.infer("vision", make_inputs())
    assert failed.value.status() == "StatusCode.UNAVAILABLE"


@pytest.fixture
async def decoupled(fleet_of: Fleet) -> AsyncIterator[KserveServer]:
    """A server of a decoupled model, `many` here."""
    async with kserve_server() as server:
        add_external(fleet_of, external_model(server.url, "many", remote_name="resnet"))
        await fleet_of.until_ready("external many/1")
        yield server


async def streamed(client: InferenceServerClient, num_requests: int = 1) -> Any:
    """Answers of a stream with as many requests."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(num_requests):
            yield {
                "model_name": "many",
                "inputs": make_inputs(number),
                "request_id": str(number),
            }

    return client.stream_infer(requests())


def described(result: "InferResult") -> tuple[str, str, bool]:
    response = result.get_response()
    final = response.parameters["triton_final_response"].bool_param
    return response.model_name, response.id, final


async def test_all_answers_of_a_decoupled_model_come_as_they_are_made(
    fleet_of: Fleet, decoupled: KserveServer
) -> None:
    client = await fleet_of.client()
    found = [described(result) async for result, _ in await streamed(client, 2)]
    assert found == [("many", each, last) for each in "01" for last in (False, False, True)]
    await fleet_of.until_metric(2, COUNTED, model="many", version="1", code="OK")
    decoupled.step = asyncio.Queue()
    stream = await streamed(client)
    # The server waits for the step that follows.
    result, error = await anext(aiter(stream))
    assert (described(result), error) == (("many", "0", False), None)
    stream.cancel()
    async with asyncio.timeout(20):
        await decoupled.gone.wait()
    await fleet_of.until_metric(1, COUNTED, model="many", version="1", code="CANCELLED")


@pytest.mark.parametrize(
    ("limit", "fault", "num_answers", "words"),
    [
        ("external_idle_s", "", 1, "sent nothing for 0.2 s within an answer"),
        ("external_first_byte_s", "stuck", 0, "did not begin to answer within 0.2 s"),
    ],
)
async def test_limits_of_time_in_a_stream(
    fleet_of: Fleet, limit: str, fault: str, num_answers: int, words: str
) -> None:
    async with kserve_server() as server:
        server.step = asyncio.Queue()
        server.fault = fault
        add_external(fleet_of, external_model(server.url, "many", remote_name="resnet"))
        await with_http(fleet_of, "external many/1", **{limit: 0.2})
        client = await fleet_of.client()
        *answers, (_, error) = [each async for each in await streamed(client)]
        assert len(answers) == num_answers
        assert words in str(error)
        assert server.remaining_s is None, "what goes on is not ended"


async def test_a_decoupled_model_that_fails_ends_its_request_alone(
    fleet_of: Fleet, decoupled: KserveServer
) -> None:
    decoupled.fault = "dies"
    client = await fleet_of.client()
    found = [(result, error) async for result, error in await streamed(client, 2)]
    assert [error is not None for _, error in found] == [False, True] * 2
    assert "'many': its server at grpc://" in str(found[1][1])
    assert "INTERNAL: out of memory" in str(found[1][1])


async def test_a_server_that_answers_with_another_message_is_named(
    fleet_of: Fleet, decoupled: KserveServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = await fleet_of.client()
    decoupled.fault = "other"
    words = "'many': its server at grpc://127.0.0.1:.* answers with another message"
    with pytest.raises(InferenceServerException, match=words) as refused:
        await client.get_model_metadata("many")
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    ((_, error),) = [each async for each in await streamed(client)]
    assert "answers with another message" in str(error)
    decoupled.fault = "mute"
    with pytest.raises(InferenceServerException, match="'many': .* answers with no message"):
        await client.infer("many", make_inputs())
    assert not any(record.exc_info for record in caplog.records)


async def test_an_answer_larger_than_a_message_may_be_is_no_overload(
    fleet_of: Fleet, decoupled: KserveServer
) -> None:
    await fleet_of.start_gateway(max_message_bytes=1000)
    await fleet_of.until_ready("external many/1")
    client = await fleet_of.client()
    decoupled.fault = "overloaded"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await refused_by(fleet_of)
    assert refused.value.details() == (
        f"model 'many': its server at {decoupled.url} answers RESOURCE_EXHAUSTED: the queue is full"
    )
    assert "retry-after-ms" in dict(refused.value.trailing_metadata())
    decoupled.fault = "large"
    words = (
        rf"'many': its server at {decoupled.url} answers 5\d\d\d bytes: at most 9\d\d are accepted"
        "; ask for less at once or raise SMELT_GATEWAY_MAX_MESSAGE_BYTES"
    )
    with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
        await refused_by(fleet_of)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after-ms" not in dict(refused.value.trailing_metadata())
    *answers, (_, error) = [each async for each in await streamed(client)]
    assert len(answers) == 1
    assert re.search(words, str(error))


async def refused_by(fleet: Fleet) -> None:
    """Ask by a client that shows the trailing metadata."""
    request = pb.ModelInferRequest(model_name="many", raw_input_contents=[bytes(16)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    async with grpc.aio.insecure_channel(fleet.url) as channel:
        await channel.unary_unary(kserve_path("ModelInfer"))(request.SerializeToString())


async def test_no_other_server_repeats_answers_that_were_given(
    fleet_of: Fleet, decoupled: KserveServer
) -> None:
    async with server_beside(fleet_of) as other:
        decoupled.fault = other.fault = "vanishes"
        client = await fleet_of.client()
        found = [(result, error) async for result, error in await streamed(client)]
    assert [error is not None for _, error in found] == [False, True]
    # The server's own gRPC ends the call by a status where that is sent before it is gone.
    words = "'many': its server at .* (cannot be reached|answers UNAVAILABLE)"
    assert re.search(words, str(found[1][1]))


async def test_what_one_server_has_no_time_for_the_other_answers(
    fleet_of: Fleet, decoupled: KserveServer
) -> None:
    async with server_beside(fleet_of) as other:
        decoupled.fault = "unavailable"
        client = await fleet_of.client()
        while decoupled.num_refused < 2:
            await client.infer("many", make_inputs())
        other.fault = "unavailable"
        with pytest.raises(InferenceServerException, match="answers UNAVAILABLE: Can") as refused:
            await client.infer("many", make_inputs())
    assert refused.value.status() == "StatusCode.UNAVAILABLE"


@contextlib.asynccontextmanager
async def server_beside(fleet: Fleet) -> AsyncIterator[KserveServer]:
    """A second version of `many`, which has half of its requests."""
    async with kserve_server() as other:
        model = external_model(other.url, "many", version=2, remote_name="resnet")
        add_external(fleet, model, weight=1)
        fleet.controller.snapshot.models[0].weight = 1
        await fleet.until_ready("external many/1", "external many/2")
        yield other
