"""ModelStreamInfer with unmodified Triton clients: order, errors, ends, permissions."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from services.contracts.transport.frames import InferFrame
from services.gateway.access.static_tokens import new_token, token_hash
from services.gateway.api.streaming import FRAME_BYTES, MAX_AHEAD, failed, framed
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet, ReplicaServer

NUM_REQUESTS = 3 * MAX_AHEAD


async def ask(
    fleet: "Fleet", asked: list[dict[str, Any]], **more: Any
) -> list[tuple[triton.InferResult, InferenceServerException | None]]:
    """What a stream gives for these requests."""
    client = await fleet.client()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for each in asked:
            yield each

    stream = client.stream_infer(requests(), **more)
    return [(result, error) async for result, error in stream]


def value_of(result: triton.InferResult) -> float:
    """The number that a request was filled with."""
    return float(result.as_numpy("y")[0, 0])


async def test_answers_come_in_the_order_of_their_requests(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    # The first ones are answered last.
    gate, seen = asyncio.Event(), 0

    def slow(echo: Any) -> Callable[[InferFrame], Any]:
        async def answer(frame: InferFrame) -> bytes:
            nonlocal seen
            seen += 1
            if seen == MAX_AHEAD:
                gate.set()
            if pb.ModelInferRequest.FromString(bytes(frame.request)).id == "0":
                await gate.wait()
            result: bytes = await echo(frame)
            return result

        return answer

    for replica in echo_fleet.replicas.values():
        replica.answer = slow(replica.echo)
    asked = [
        {"model_name": "echo", "inputs": inputs(float(n)), "request_id": str(n)}
        for n in range(NUM_REQUESTS)
    ]
    answers = await ask(echo_fleet, asked)
    assert [error for _, error in answers if error] == []
    assert [value_of(result) for result, _ in answers] == list(range(NUM_REQUESTS))
    assert [result.get_response().id for result, _ in answers] == [r["request_id"] for r in asked]


async def test_every_answer_says_that_it_is_the_last_of_its_request(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    ((result, _),) = await ask(echo_fleet, [{"model_name": "echo", "inputs": inputs()}])
    parameters = result.get_response().parameters
    assert parameters["triton_final_response"].bool_param is True
    assert parameters["replica"].string_param in ("r1", "r2")


async def test_a_failed_request_is_told_in_its_place_and_the_stream_goes_on(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    asked = [
        {"model_name": name, "inputs": inputs(), "request_id": f"{n}-{name}"}
        for n, name in enumerate(["echo", "nobody", "echo", "nothing"])
    ]
    answers = await ask(echo_fleet, asked)
    errors = [str(error) if error else "" for _, error in answers]
    assert [bool(error) for error in errors] == [False, True, False, True]
    assert "unknown model: 'nobody'" in errors[1]
    ids = [result.get_response().id for result, _ in answers if result is not None]
    assert ids == ["0-echo", "2-echo"]
    for name, count in (("echo", 2), ("", 2)):
        code = "OK" if name else "NOT_FOUND"
        labels = {"model": name, "version": "1" if name else "", "code": code}
        await echo_fleet.until_metric(count, "smelt_requests_total", **labels)


async def test_a_client_that_wants_grpc_errors_gets_the_status_and_the_end(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await echo_fleet.client()
    values, all_sent = [], asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for name in ("echo", "nobody"):
            yield {"model_name": name, "inputs": inputs()}
        await all_sent.wait()

    stream = client.stream_infer(requests(), headers={"triton_grpc_error": "true"})

    async def read() -> None:
        async for result, _ in stream:
            values.append(value_of(result))

    with pytest.raises(grpc.aio.AioRpcError, match="unknown model") as caught:
        await read()
    all_sent.set()
    assert values == [1.0]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def limit_messages(fleet: "Fleet") -> None:
    """A gateway that sends no message of more than 1000 bytes."""
    await fleet.start_gateway(max_message_bytes=1000)
    await fleet.until_ready("r1", "r2")


async def test_an_answer_that_is_too_large_is_refused_alone_and_counted_once(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await limit_messages(echo_fleet)
    for replica in echo_fleet.replicas.values():
        replica.answer = partial(_grown_if_large, replica)
    asked = [
        {"model_name": "echo", "inputs": inputs(), "request_id": each}
        for each in ("first", "large", "last")
    ]
    answers = await ask(echo_fleet, asked)
    errors = [str(error) if error else "" for _, error in answers]
    assert [bool(error) for error in errors] == [False, True, False]
    assert "at most 1000 are sent; ask for less" in errors[1]
    with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED.*at most 1000"):
        await (await echo_fleet.client()).infer("echo", inputs(), request_id="large")
    labels = {"model": "echo", "version": "1"}
    for code, number in (("RESOURCE_EXHAUSTED", 2), ("OK", 2)):
        await echo_fleet.until_metric(number, "smelt_requests_total", code=code, **labels)
    unhandled = {"model": "", "version": "", "code": "RESOURCE_EXHAUSTED"}
    assert echo_fleet.metric("smelt_requests_total", **unhandled) is None


async def _grown_if_large(replica: "ReplicaServer", frame: InferFrame) -> bytes:
    request = pb.ModelInferRequest.FromString(bytes(frame.request))
    if request.id == "large":
        frame = frame._replace(request=_grown(request))
    return await replica.echo(frame)


async def _echo_padded(replica: "ReplicaServer", frame: InferFrame) -> bytes:
    return _padded(await replica.echo(frame))


def _grown(request: pb.ModelInferRequest) -> bytes:
    request.raw_input_contents[0] = bytes(1000)
    return request.SerializeToString()


async def test_an_answer_that_its_frame_makes_too_large_is_refused_alone(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await limit_messages(echo_fleet)
    for replica in echo_fleet.replicas.values():
        replica.answer = partial(_echo_padded, replica)
    most = 1000 - FRAME_BYTES
    asked = [
        {"model_name": "echo", "inputs": inputs(), "request_id": str(size)}
        for size in (most, most + 1, 1000, 800)
    ]
    errors = [str(error) if error else "" for _, error in await ask(echo_fleet, asked)]
    assert [bool(error) for error in errors] == [False, True, True, False]
    assert all("bytes: at most 1000 are sent; ask for less" in each for each in errors[1:3])
    # Without a frame, all of it is the answer's.
    client = await echo_fleet.client()
    await client.infer("echo", inputs(), request_id="1000")
    with pytest.raises(InferenceServerException, match="has 1001 bytes: at most 1000"):
        await client.infer("echo", inputs(), request_id="1001")
    labels = {"model": "echo", "version": "1"}
    for code, number in (("RESOURCE_EXHAUSTED", 3), ("OK", 3)):
        await echo_fleet.until_metric(number, "smelt_requests_total", code=code, **labels)
    unhandled = {"model": "", "version": "", "code": "RESOURCE_EXHAUSTED"}
    assert echo_fleet.metric("smelt_requests_total", **unhandled) is None


def _padded(answer: bytes) -> bytes:
    """The answer, with as many bytes as its id says."""
    response = pb.ModelInferResponse.FromString(answer)
    pad = response.parameters["pad"]
    pad.string_param = "x" * 500
    pad.string_param = "x" * (500 + int(response.id) - response.ByteSize())
    assert response.ByteSize() == int(response.id)
    return response.SerializeToString()


async def test_a_client_that_leaves_takes_its_requests_with_it(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    begun, is_cancelled = asyncio.Event(), asyncio.Event()

    async def never(frame: InferFrame) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()
        return b""

    for replica in echo_fleet.replicas.values():
        replica.answer = never
    asking = asyncio.create_task(ask(echo_fleet, [{"model_name": "echo", "inputs": inputs()}]))
    async with asyncio.timeout(30):
        await begun.wait()
        asking.cancel()
        await is_cancelled.wait()
    await echo_fleet.until_metric(
        1, "smelt_requests_total", model="echo", version="1", code="CANCELLED"
    )


async def test_the_blocking_client_streams_too(echo_fleet: "Fleet", inputs: Inputs) -> None:
    def stream() -> list[float]:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with triton.InferenceServerClient(echo_fleet.url) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for number in range(5):
                tensor = triton.InferInput("x", [1, 4], "FP32")
                tensor.set_data_from_numpy(np.full((1, 4), number, np.float32))
                client.async_stream_infer("echo", [tensor])
            got = [answers.get(timeout=30) for _ in range(5)]
            client.stop_stream()
        assert all(error is None for _, error in got)
        return [value_of(result) for result, _ in got]

    assert await asyncio.to_thread(stream) == [0, 1, 2, 3, 4]


async def test_each_request_of_a_stream_needs_the_permission(
    echo_fleet: "Fleet", inputs: Inputs, tmp_path: Path
) -> None:
    token = new_token()
    grants = [{"verbs": ["infer"], "models": ["echo"]}]
    entry = {"name": "ada", "sha256": token_hash(token), "grants": grants}
    access_file = tmp_path / "access.yaml"
    access_file.write_text(yaml.safe_dump({"tokens": [entry]}))
    await echo_fleet.start_gateway(access_file=access_file)
    await echo_fleet.until_ready("r1", "r2")
    asked = [{"model_name": name, "inputs": inputs()} for name in ("echo", "secret", "echo")]
    answers = await ask(echo_fleet, asked, headers={"authorization": f"Bearer {token}"})
    assert [error is None for _, error in answers] == [True, False, True]
    assert "'ada' may not do this: it needs 'infer' on model 'secret'" in str(answers[1][1])
    # Without a request: a client that is still sending may not hear why the stream ended.
    with pytest.raises(grpc.aio.AioRpcError, match="no token") as caught:
        await ask(echo_fleet, [])
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("size", [0, 100, 127, 128, 20_000, 3_000_000])
def test_an_answer_is_framed_without_being_parsed(size: int) -> None:
    answer = pb.ModelInferResponse(model_name="m", raw_output_contents=[bytes(size)])
    message = pb.ModelStreamInferResponse.FromString(framed(answer.SerializeToString()))
    assert message.error_message == ""
    assert message.infer_response.parameters["triton_final_response"].bool_param
    message.infer_response.parameters.clear()
    assert message.infer_response == answer


def test_a_failure_carries_the_id_of_its_request() -> None:
    body = pb.ModelInferRequest(model_name="m", id="r7").SerializeToString()
    message = pb.ModelStreamInferResponse.FromString(failed(body, "no"))
    assert (message.error_message, message.infer_response.id) == ("no", "r7")
    assert pb.ModelStreamInferResponse.FromString(failed(b"\xff", "no")).infer_response.id == ""


async def test_the_index_lists_every_version_and_its_state(
    echo_fleet: "Fleet", new_model: Callable[..., Any]
) -> None:
    client = await echo_fleet.client()
    echo_fleet.add_model(new_model("slow", 3), reason="replicas start")
    echo_fleet.controller.snapshot.models[-1].state = "LOADING"
    echo_fleet.controller.publish()
    await echo_fleet.until(lambda: "slow" in echo_fleet.gateway.endpoints.table.view.models)
    index = (await client.get_model_repository_index()).models
    assert [(m.name, m.version, m.state, m.reason) for m in index] == [
        ("echo", "1", "READY", ""),
        ("slow", "3", "LOADING", "replicas start"),
    ]
    request = service_pb2.RepositoryIndexRequest(repository_name="other")
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="this server has one repository"):
            await stub.RepositoryIndex(request)
