"""The bound on requests in flight, and what Prometheus sees of every request."""

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tritonclient.utils import InferenceServerException

from services.contracts.transport.frames import InferFrame
from services.grpc_server.limits import SMALL_BYTES
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.answers import Inputs
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.raw_client import RawClient

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def _fill(echo_fleet: "Fleet", inputs: Inputs) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """One request that stays in flight until the event."""
    started, finish = asyncio.Event(), asyncio.Event()

    async def wait(frame: InferFrame) -> bytes:
        started.set()
        await finish.wait()
        return await echo_fleet.replicas["r1"].echo(frame)

    for replica in echo_fleet.replicas.values():
        replica.answer = wait
    client = await echo_fleet.client()
    task = asyncio.ensure_future(client.infer("echo", inputs()))
    await asyncio.wait_for(started.wait(), 30)
    return task, finish


@pytest.mark.parametrize(
    ("is_triton_like", "code"), [(False, "RESOURCE_EXHAUSTED"), (True, "UNAVAILABLE")]
)
async def test_requests_beyond_the_bound_are_refused_with_a_hint(
    echo_fleet: "Fleet", inputs: Inputs, is_triton_like: bool, code: str
) -> None:
    await echo_fleet.start_gateway(max_in_flight=1, overload_as_unavailable=is_triton_like)
    await echo_fleet.until_ready("r1", "r2")
    task, finish = await _fill(echo_fleet, inputs)
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"not even read")
    assert caught.value.code().name == code
    assert "1 requests in flight" in (caught.value.details() or "")
    hint = dict(caught.value.trailing_metadata())["retry-after-ms"]
    assert int(hint) > 0
    finish.set()
    await task
    assert await (await echo_fleet.client()).infer("echo", inputs())


async def test_small_requests_are_bounded_by_their_bytes_too(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await echo_fleet.start_gateway(max_upload_bytes=4096)
    await echo_fleet.until_ready("r1", "r2")
    task, finish = await _fill(echo_fleet, inputs)
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match=r"bytes in flight, its bound is 2048") as no:
        await client.infer("echo", inputs(rows=128), client_timeout=30)
    assert no.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    finish.set()
    await asyncio.gather(task, client.infer("echo", inputs()))
    # One that is larger than the bound is taken alone.
    assert await client.infer("echo", inputs(rows=128))


async def test_a_request_without_room_is_refused_and_counted_as_any_overload(
    echo_fleet: "Fleet",
) -> None:
    size = 5 << 20
    await echo_fleet.start_gateway(max_upload_bytes=size, overload_as_unavailable=True)
    await echo_fleet.until_ready("r1", "r2")
    held, never = asyncio.Event(), asyncio.Event()

    async def hold(_: InferFrame) -> bytes:
        held.set()
        await never.wait()
        raise AssertionError

    for replica in echo_fleet.replicas.values():
        replica.answer = hold
    body = pb.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(size)])
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        calls = [call(body.SerializeToString())]
        # It has the only room, and what it sent no longer counts among what waits.
        await asyncio.wait_for(held.wait(), timeout=30)
        calls += [call(body.SerializeToString()) for _ in range(11)]
        # What the others sent while they wait is full when eight have sent 4 MiB.
        labels = {"model": "", "version": "", "reason": "memory"}
        await echo_fleet.until_metric(4, "smelt_requests_rejected_total", **labels)
        ends = [asyncio.ensure_future(each.code()) for each in calls]
        for end in itertools.islice(asyncio.as_completed(ends, timeout=30), 4):
            assert await end is grpc.StatusCode.UNAVAILABLE
        refused = [each for each in calls if each.done()]
        assert len(refused) == 4
        for each in refused:
            assert await each.code() is grpc.StatusCode.UNAVAILABLE
            assert dict(await each.trailing_metadata())["retry-after-ms"] == "50"
        for each in calls:
            each.cancel()
    reason = {"model": "", "version": "", "reason": "unsent"}
    await echo_fleet.until_metric(7, "smelt_requests_cancelled_total", **reason)


async def test_every_answer_and_refusal_is_counted(echo_fleet: "Fleet", inputs: Inputs) -> None:
    client = await echo_fleet.client()
    await client.infer("echo", inputs())
    for model, version in (("attack-1", ""), ("attack-2", ""), ("echo", "9"), ("echo", "x")):
        with pytest.raises(InferenceServerException):
            await client.infer(model, inputs(), model_version=version)

    async def number(code: str, **labels: str) -> None:
        await echo_fleet.until_metric(value, "smelt_requests_total", code=code, **labels)

    value = 1.0
    await number("OK", model="echo", version="1")
    await number("NOT_FOUND", model="echo", version="")
    await number("INVALID_ARGUMENT", model="echo", version="")
    value = 2.0
    await number("NOT_FOUND", model="", version="")
    name = "smelt_request_duration_seconds_count"
    await echo_fleet.until_metric(1.0, name, model="echo", version="1", code="OK")
    engine = {"generation": "cpu-x86_64-v3", "kind": "openvino"}
    for name, labels in (("gateway", {"code": "OK"}), ("replica", engine)):
        name = f"smelt_{name}_duration_seconds_count"
        assert echo_fleet.metric(name, model="echo", version="1", **labels) == 1.0
    models = {
        sample.labels.get("model", "")
        for metric in echo_fleet.registry.collect()
        for sample in metric.samples
    }
    assert models == {"", "echo"}


async def test_requests_in_flight_go_up_and_down(echo_fleet: "Fleet", inputs: Inputs) -> None:
    task, finish = await _fill(echo_fleet, inputs)
    labels = {"model": "echo", "version": "1"}
    await echo_fleet.until_metric(1.0, "smelt_requests_in_flight", **labels)
    finish.set()
    await task
    await echo_fleet.until_metric(0.0, "smelt_requests_in_flight", **labels)


async def test_ready_replicas_by_generation(echo_fleet: "Fleet") -> None:
    labels = {"model": "echo", "version": "1", "generation": "cpu-x86_64-v3"}
    await echo_fleet.until_metric(2.0, "smelt_replicas_ready", **labels)
    del echo_fleet.controller.snapshot.replicas[:]
    await echo_fleet.until_ready()
    await echo_fleet.until_metric(0.0, "smelt_replicas_ready", **labels)


async def test_bytes_that_are_no_request_are_refused(echo_fleet: "Fleet") -> None:
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError, match="not an inference.ModelInferRequest"):
            await call(b"\xff\xff")


async def test_the_body_reaches_the_replica_unchanged(echo_fleet: "Fleet") -> None:
    """Fields in an unusual order, one of them unknown: the gateway forwards bytes."""
    request = pb.ModelInferRequest(raw_input_contents=[bytes(16)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    name = pb.ModelInferRequest(model_name="echo").SerializeToString()
    body = bytes([15 << 3, 7]) + request.SerializeToString() + name
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(await call(body))
    assert answer.raw_output_contents == [bytes(16)]
    (frame,) = (f for replica in echo_fleet.replicas.values() for f in replica.frames)
    assert frame.request == body


async def test_a_bound_of_a_model_that_nobody_serves_is_told(
    fleet_of: "Fleet", caplog: pytest.LogCaptureFixture
) -> None:
    await fleet_of.start_gateway(model_max_in_flight={"ecco": 1})
    fleet_of.controller.publish()
    await fleet_of.until(lambda: fleet_of.gateway.endpoints.table.view.is_known)
    assert "SMELT_GATEWAY_MODEL_MAX_IN_FLIGHT bounds model 'ecco'" in caplog.text


async def test_requests_that_no_handler_saw_are_counted(echo_fleet: "Fleet") -> None:
    await echo_fleet.start_gateway(max_message_bytes=10_000, max_decompressed_bytes=5_000)
    await echo_fleet.until_ready("r1", "r2")
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        for method, body, compression in (
            ("ModelInfer", bytes(10_001), grpc.Compression.NoCompression),
            ("ModelInfer", bytes(5_001), grpc.Compression.Gzip),
            ("ModelMetadata", bytes(10_001), grpc.Compression.NoCompression),
        ):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(body, compression=compression, timeout=30)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    labels = {"model": "", "version": "", "code": "RESOURCE_EXHAUSTED"}
    await echo_fleet.until_metric(2, "smelt_requests_total", **labels)


@pytest.mark.parametrize(("method", "code"), [("ModelMetadata", 8), ("ModelInfer", None)])
async def test_only_inference_takes_large_requests(
    echo_fleet: "Fleet", method: str, code: int | None
) -> None:
    client = await RawClient.dial(echo_fleet.gateway.port)
    fields = [(":path", f"/inference.GRPCInferenceService/{method}")]
    fields += [each for each in f.request_fields() if each[0] != ":path"]
    announced = f.message(bytes(SMALL_BYTES + 1))[:100]
    await client.send(f.headers(1, sorted(fields)), f.data(1, announced))
    await client.settled()
    assert client.seen(1).status == code
    client.close()


async def test_connections_are_counted_and_why_they_end(echo_fleet: "Fleet") -> None:
    await echo_fleet.start_gateway(max_connections=2)
    before = echo_fleet.metric("smelt_gateway_connections") or 0
    assert before == 0
    host, _, port = echo_fleet.url.rpartition(":")
    first = await asyncio.open_connection(host, int(port))
    await echo_fleet.until_metric(1, "smelt_gateway_connections")
    second = await asyncio.open_connection(host, int(port))
    await echo_fleet.until_metric(2, "smelt_gateway_connections")
    third = await asyncio.open_connection(host, int(port))
    ended = "smelt_gateway_connections_ended_total"
    await echo_fleet.until_metric(1, ended, reason="limit")
    for _, writer in (first, second, third):
        writer.close()
    await echo_fleet.until_metric(2, ended, reason="client")
    await echo_fleet.until_metric(0, "smelt_gateway_connections")
