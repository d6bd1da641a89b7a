"""What clients get from a whole fleet: right answers, and words about wrong questions."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.utils import InferenceServerException

from services.cli.requests.infer import gateway_rpc
from services.contracts.kserve.tensors import Array, bytes_from_array
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.fleet.load import concurrent
from tests.integration.fleet.local_fleet import LocalFleet
from tests.integration.fleet.onnx_files import FEATURES, OUTPUTS, TOLERANCE, answer_of

if TYPE_CHECKING:
    from tests.integration.fleet.conftest import Served

Request = pb.ModelInferRequest
X_BF = np.random.default_rng(5).standard_normal((2, FEATURES)).astype(np.float32)


def asked(model: str, x: Array, datatype: str) -> triton.InferInput:
    tensor = triton.InferInput("x", x.shape, datatype)
    tensor.set_data_from_numpy(x)
    return tensor


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_answers_equal_onnxruntime(
    served: "Served", client: triton.InferenceServerClient, batch: int
) -> None:
    x_BF = np.random.default_rng(batch).standard_normal((batch, FEATURES)).astype(np.float32)
    result = client.infer("linear", [asked("linear", x_BF, "FP32")], request_id="r-1")
    assert np.allclose(result.as_numpy("y"), answer_of(served.linear, x_BF), atol=TOLERANCE)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("r-1", "linear", "1")


def test_integers_come_back_as_they_went(client: triton.InferenceServerClient) -> None:
    x_BT = np.arange(600, dtype=np.int64).reshape(2, 300)
    result = client.infer("noop", [asked("noop", x_BT, "INT64")])
    assert np.array_equal(result.as_numpy("y"), x_BT)


async def test_joined_requests_get_their_own_rows(served: "Served") -> None:
    weights = answer_of(served.linear, np.eye(FEATURES, dtype=np.float32))
    bias = answer_of(served.linear, np.zeros((1, FEATURES), np.float32))

    def is_correct(x_BF: Array, y_BO: Array) -> bool:
        return bool(np.allclose(y_BO, x_BF @ (weights - bias) + bias, atol=1e-4))

    load = await concurrent(served.fleet.address, "linear", is_correct, FEATURES, num_calls=400)
    assert set(load.outcomes) == {"OK"}, load.failures
    assert load.num_wrong == 0


@pytest.fixture
def bare_infer(fleet: LocalFleet) -> Iterator[Callable[..., pb.ModelInferResponse]]:
    """The bare RPC, for what a client library would not send."""
    with grpc.insecure_channel(fleet.address) as channel:
        yield gateway_rpc(channel, "ModelInfer")


def request_of(
    name: str = "x",
    datatype: str = "FP32",
    shape: tuple[int, ...] = X_BF.shape,
    data: bytes = bytes_from_array(X_BF),
) -> Request:
    request = Request(model_name="linear")
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(data)
    return request


def both_contents_kinds() -> Request:
    request = request_of()
    request.inputs[0].contents.fp32_contents.extend(X_BF.ravel())
    return request


def no_tensor() -> Request:
    return Request(model_name="linear")


@pytest.mark.parametrize(
    ("request_made", "words"),
    [
        (lambda: request_of(name="z"), ("'z'", "'x'")),
        (lambda: request_of(datatype="INT32"), ("FP32", "INT32")),
        (lambda: request_of(shape=(2, 9)), ("[-1, 8]", "[2, 9]")),
        (lambda: request_of(shape=(2, 8, 1)), ("[-1, 8]", "[2, 8, 1]")),
        (lambda: request_of(data=b"12345"), ("64", "5")),
        (no_tensor, ("'x'", "1", "0")),
        (both_contents_kinds, ("raw_input_contents", "contents")),
    ],
    ids=["name", "datatype", "shape", "rank", "bytes", "missing", "both kinds"],
)
def test_a_wrong_input_is_told_what_was_expected_and_found(
    bare_infer: Callable[..., pb.ModelInferResponse],
    request_made: Callable[[], Request],
    words: tuple[str, ...],
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        bare_infer(request_made(), timeout=30)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for word in words:
        assert word in raised.value.details()


def test_unknown_models_and_versions_are_not_found(client: triton.InferenceServerClient) -> None:
    for model, version in (("nope", ""), ("linear", "9")):
        with pytest.raises(InferenceServerException, match=model) as raised:
            client.infer(model, [asked(model, X_BF, "FP32")], model_version=version)
        assert raised.value.status() == "StatusCode.NOT_FOUND"


def test_metadata_and_config(client: triton.InferenceServerClient) -> None:
    assert client.get_server_metadata().name == "smelt"
    metadata = client.get_model_metadata("linear")
    assert [(i.name, i.datatype, list(i.shape)) for i in metadata.inputs] == [
        ("x", "FP32", [-1, FEATURES])
    ]
    assert [(o.name, o.datatype, list(o.shape)) for o in metadata.outputs] == [
        ("y", "FP32", [-1, OUTPUTS])
    ]
    config = client.get_model_config("noop").config
    assert config.max_batch_size == 32


def test_statistics_count_what_was_asked(client: triton.InferenceServerClient) -> None:
    def successes() -> int:
        (stats,) = client.get_inference_statistics("noop").model_stats
        return int(stats.inference_stats.success.count)

    before = successes()
    for _ in range(3):
        client.infer("noop", [asked("noop", np.zeros((1, 4), np.int64), "INT64")])
    assert successes() == before + 3


def test_health_and_reflection(fleet: LocalFleet) -> None:
    with grpc.insecure_channel(fleet.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "linear"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        described = descriptor_pool.DescriptorPool(database)
        service = described.FindServiceByName("inference.GRPCInferenceService")
        assert "ModelInfer" in service.methods_by_name


def test_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("linear", "1")
    assert not client.is_model_ready("linear", "9")
