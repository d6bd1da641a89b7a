"""Inference through the gateway with unmodified Triton clients."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_client
from tritonclient.utils import InferenceServerException

from services.contracts.errors import (
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
)
from services.contracts.transport.frames import InferFrame
from tests.integration.gateway.answers import Inputs, who

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_an_answer_reaches_the_async_client(echo_fleet: "Fleet", inputs: Inputs) -> None:
    client = await echo_fleet.client()
    result = await client.infer("echo", inputs(2.5, rows=3), request_id="id-1")
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("echo", "1", "id-1")
    np.testing.assert_array_equal(result.as_numpy("y"), np.full((3, 4), 2.5, np.float32))


async def test_an_answer_reaches_the_blocking_client(echo_fleet: "Fleet", inputs: Inputs) -> None:
    def ask() -> Any:
        with sync_client.InferenceServerClient(echo_fleet.url) as client:
            return client.infer("echo", inputs(7.0), model_version="1").as_numpy("y")

    np.testing.assert_array_equal(await asyncio.to_thread(ask), np.full((1, 4), 7.0, np.float32))


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
async def test_compressed_requests(echo_fleet: "Fleet", inputs: Inputs, compression: str) -> None:
    client = await echo_fleet.client()
    result = await client.infer("echo", inputs(3.0), compression_algorithm=compression)
    np.testing.assert_array_equal(result.as_numpy("y"), np.full((1, 4), 3.0, np.float32))


async def test_answers_above_grpcs_default_limit_of_four_mebibytes(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await echo_fleet.client()
    result = await client.infer("echo", inputs(1.0, rows=500_000))
    assert result.as_numpy("y").shape == (500_000, 4)


async def test_sixty_four_requests_at_once_get_their_own_answers(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    """Both replicas answer in another order than they were asked in."""
    gates = [asyncio.Event() for _ in range(64)]

    async def answer_last_first(frame: InferFrame) -> bytes:
        number = int(frame.trace)
        if number + 1 < len(gates):
            await gates[number + 1].wait()
        gates[number].set()
        return await echo_fleet.replicas["r1"].echo(frame)

    for replica in echo_fleet.replicas.values():
        replica.answer = answer_last_first
    client = await echo_fleet.client()
    results = await asyncio.gather(
        *(client.infer("echo", inputs(float(n)), request_id=str(n)) for n in range(64))
    )
    for number, result in enumerate(results):
        assert result.get_response().id == str(number)
        np.testing.assert_array_equal(result.as_numpy("y"), np.full((1, 4), number, np.float32))
    counts = [replica.num_requests for replica in echo_fleet.replicas.values()]
    assert sum(counts) == 64
    assert min(counts) > 16


@pytest.mark.parametrize(
    ("model", "version", "code", "text"),
    [
        ("nope", "", "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        ("echo", "9", "NOT_FOUND", "version 9 is not found; known versions: 1"),
        ("echo", "one", "INVALID_ARGUMENT", "version 'one' is not a number; known: 1"),
    ],
)
async def test_wrong_names(
    echo_fleet: "Fleet", inputs: Inputs, model: str, version: str, code: str, text: str
) -> None:
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match=text) as caught:
        await client.infer(model, inputs(), model_version=version)
    assert caught.value.status() == f"StatusCode.{code}"


async def test_the_empty_version_is_the_newest_that_is_ready(
    echo_fleet: "Fleet", inputs: Inputs, new_model: Callable[..., Any]
) -> None:
    echo_fleet.add_model(new_model(version=2))
    echo_fleet.add_model(new_model(version=3), reason="no engine yet")
    await echo_fleet.add_replica("r3", version=2)
    await echo_fleet.until_ready("r1", "r2", "r3")
    client = await echo_fleet.client()
    assert who(await client.infer("echo", inputs())) == "r3"
    assert who(await client.infer("echo", inputs(), model_version="1")) in ("r1", "r2")
    with pytest.raises(InferenceServerException, match="no ready replica: no engine yet") as caught:
        await client.infer("echo", inputs(), model_version="3")
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


async def test_a_model_without_replicas_is_unavailable_at_once(
    fleet_of: "Fleet", inputs: Inputs, new_model: Callable[..., Any]
) -> None:
    client = await fleet_of.client()
    with pytest.raises(InferenceServerException) as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() in ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
    fleet_of.add_model(new_model())
    fleet_of.controller.publish()
    await fleet_of.until(lambda: "echo" in fleet_of.gateway.endpoints.table.view.models)
    with pytest.raises(InferenceServerException, match="has no ready replica") as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InvalidRequestError("input 'x': expected FP32, got INT8"), "INVALID_ARGUMENT", "got INT8"),
        (OverloadedError("queue is full"), "RESOURCE_EXHAUSTED", "queue is full"),
        (ValueError("a secret path"), "INTERNAL", "^.*internal error; request id id-9$"),
    ],
)
async def test_a_replicas_errors_reach_the_client(
    echo_fleet: "Fleet", inputs: Inputs, error: Exception, code: str, text: str
) -> None:
    async def refuse(frame: InferFrame) -> bytes:
        raise error

    for replica in echo_fleet.replicas.values():
        replica.answer = refuse
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match=text) as caught:
        await client.infer("echo", inputs(), request_id="id-9")
    assert caught.value.status() == f"StatusCode.{code}"
    assert sum(replica.num_requests for replica in echo_fleet.replicas.values()) == 1


async def test_a_draining_replica_hands_its_requests_to_another(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    """Between a replica's decision to drain and the controller's word of it."""

    async def refuse(frame: InferFrame) -> bytes:
        raise NotReadyError("draining")

    await echo_fleet.start_gateway(hold_s=0.1)
    await echo_fleet.until_ready("r1", "r2")
    echo_fleet.replicas["r1"].answer = refuse
    client = await echo_fleet.client()
    results = [await client.infer("echo", inputs()) for _ in range(20)]
    assert {who(result) for result in results} == {"r2"}
    echo_fleet.replicas["r2"].answer = refuse
    with pytest.raises(InferenceServerException, match="draining") as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


async def test_the_deadline_reaches_the_replica_and_frees_it(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    cancelled = asyncio.Event()

    async def hang(frame: InferFrame) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b""

    client = await echo_fleet.client()
    await client.infer("echo", inputs(), client_timeout=60.0)
    (frame,) = (f for replica in echo_fleet.replicas.values() for f in replica.frames)
    assert frame.deadline_s is not None
    # gRPC's client rounds what it sends up, by a tenth of a second where it is that large.
    assert 0 < frame.deadline_s < 61
    for replica in echo_fleet.replicas.values():
        replica.answer = hang
    # Long enough that a busy machine sends the request on before it passes.
    assert await echo_fleet.status_in("5S", bytes(frame.request)) == DEADLINE_EXCEEDED
    await asyncio.wait_for(cancelled.wait(), 30)
    await echo_fleet.until_metric(
        1.0, "smelt_requests_total", model="echo", version="1", code="DEADLINE_EXCEEDED"
    )


async def test_a_client_that_goes_away_frees_the_replica(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(frame: InferFrame) -> bytes:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b""

    for replica in echo_fleet.replicas.values():
        replica.answer = hang
    client = await echo_fleet.client()
    request = asyncio.ensure_future(client.infer("echo", inputs()))
    await asyncio.wait_for(started.wait(), 30)
    request.cancel()
    await asyncio.wait_for(cancelled.wait(), 30)
    await echo_fleet.until_metric(
        1.0, "smelt_requests_total", model="echo", version="1", code="CANCELLED"
    )
    await echo_fleet.until_metric(0.0, "smelt_requests_in_flight", model="echo", version="1")
