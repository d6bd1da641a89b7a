"""Large requests of real clients: read off the network into memory that the replica reads."""

import asyncio
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.frames import InferFrame
from services.contracts.transport.lent_memory import UNIT_BYTES
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    from services.gateway.upstream.arena import RequestArena
    from tests.integration.gateway.conftest import Fleet

# An image's 602,112 bytes.
ROWS = 37_632
# Of the arena, for such a request.
BLOCK_BYTES = 9 * UNIT_BYTES
VALUES = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A gateway collects garbage rarely: no slot may wait for that."""
    gc.disable()
    yield
    gc.enable()


async def ready(fleet: "Fleet", **replica: Any) -> None:
    """One replica of `echo`."""
    await fleet.add_replica("r1", **replica)
    await fleet.until_ready("r1")


def _request(rows: int = ROWS) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="echo", id="7")
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    request.raw_input_contents.append(VALUES[:rows].tobytes())
    return request


async def _asked(fleet: "Fleet", request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    async with grpc.aio.insecure_channel(fleet.url) as channel:
        answer: pb.ModelInferResponse = await _method(channel)(request, timeout=30)
        return answer


def _method(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )


def _arena(fleet: "Fleet") -> "RequestArena":
    arena = fleet.gateway.arena
    assert arena is not None
    return arena


def _was_lent(frame: InferFrame) -> bool:
    """What is copied has memory of its own, which may be written."""
    return isinstance(frame.request, memoryview) and frame.request.readonly


async def _free(arena: "RequestArena") -> None:
    """Waits until the gateway's last task has ended: the client may be ahead of it."""
    async with asyncio.timeout(30):
        while arena.num_taken_bytes:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


async def test_a_large_request_is_answered_and_read_where_it_lies(fleet_of, new_model) -> None:
    fleet_of.add_model(new_model())
    await ready(fleet_of)
    replica = fleet_of.replicas["r1"]
    for num in range(1, 6):
        answer = await _asked(fleet_of, _request())
        assert answer.raw_output_contents[0] == VALUES.tobytes()
        assert [_was_lent(frame) for frame in replica.frames] == [True] * num
    # Each whole at its own place: all are still looked at.
    bodies = [bytes(frame.request) for frame in replica.frames]
    assert all(VALUES.tobytes() in body for body in bodies)
    assert _arena(fleet_of).num_taken_bytes == 5 * BLOCK_BYTES
    replica.frames.clear()
    await _free(_arena(fleet_of))


async def test_requests_of_tritonclient_and_small_ones(fleet_of, new_model, inputs) -> None:
    fleet_of.add_model(new_model())
    await ready(fleet_of)
    client = await fleet_of.client()
    for rows in (1, 4000, ROWS, 200_000):
        result = await client.infer("echo", inputs(3.0, rows))
        np.testing.assert_array_equal(result.as_numpy("y"), np.full((rows, 4), 3.0, np.float32))
    frames = fleet_of.replicas["r1"].frames
    assert [_was_lent(frame) for frame in frames] == [False, False, True, True]
    frames.clear()
    await _free(_arena(fleet_of))


async def test_a_large_request_that_fails_gives_its_slot_back(fleet_of, new_model, inputs) -> None:
    fleet_of.add_model(new_model())
    await ready(fleet_of)
    replica, client, lent = fleet_of.replicas["r1"], await fleet_of.client(), []

    async def refuse(frame: InferFrame) -> bytes:
        lent.append(_was_lent(frame))
        replica.frames.clear()
        raise InvalidRequestError("not this one")

    replica.answer = refuse
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="not this one"):
            await client.infer("echo", inputs(3.0, ROWS))
    with pytest.raises(InferenceServerException, match="'nope'"):
        await client.infer("nope", inputs(3.0, ROWS))
    assert lent == [True] * 3
    await _free(_arena(fleet_of))


@pytest.mark.parametrize("timeout_s", [None, 1.0])
async def test_a_client_that_waits_no_longer_gives_its_slot_back(
    fleet_of, new_model, timeout_s: float | None
) -> None:
    fleet_of.add_model(new_model())
    await ready(fleet_of)
    replica, started = fleet_of.replicas["r1"], asyncio.Event()

    async def hang(frame: InferFrame) -> bytes:
        replica.frames.clear()
        started.set()
        await asyncio.Event().wait()
        return b""

    replica.answer = hang
    async with grpc.aio.insecure_channel(fleet_of.url) as channel:
        await channel.channel_ready()
        call = _method(channel)(_request(), timeout=timeout_s)
        await asyncio.wait_for(started.wait(), 30)
        if timeout_s is None:
            assert _arena(fleet_of).num_taken_bytes == BLOCK_BYTES
            call.cancel()
        code = await call.code()
        await _free(_arena(fleet_of))
    wanted = grpc.StatusCode.DEADLINE_EXCEEDED if timeout_s else grpc.StatusCode.CANCELLED
    assert code is wanted


@pytest.mark.parametrize("how", ["tcp", "no memory"])
async def test_a_large_request_is_copied_where_it_cannot_be_lent(
    fleet_of, new_model, how: str
) -> None:
    fleet_of.add_model(new_model())
    if how == "no memory":
        await fleet_of.start_gateway(request_memory_bytes=0)
        assert fleet_of.gateway.arena is None
    await ready(fleet_of, host_id="elsewhere" if how == "tcp" else "here")
    answer = await _asked(fleet_of, _request())
    assert answer.raw_output_contents[0] == VALUES.tobytes()
    assert [_was_lent(frame) for frame in fleet_of.replicas["r1"].frames] == [False]


async def test_one_of_two_replicas_dies_with_the_request(fleet_of, new_model) -> None:
    """The other reads the same slot."""
    fleet_of.add_model(new_model())
    await fleet_of.add_replica("r1")
    await fleet_of.add_replica("r2")
    await fleet_of.until_ready("r1", "r2")
    lent = []

    def dying(name: str) -> Any:
        async def answer(frame: InferFrame) -> bytes:
            lent.append(_was_lent(frame))
            if len(lent) == 1:
                fleet_of.replicas[name].die()
            return await fleet_of.replicas[name].echo(frame)

        return answer

    for name, replica in fleet_of.replicas.items():
        replica.answer = dying(name)
    answer = await _asked(fleet_of, _request())
    assert answer.raw_output_contents[0] == VALUES.tobytes()
    assert lent == [True, True]
    for replica in fleet_of.replicas.values():
        replica.frames.clear()
    await _free(_arena(fleet_of))
