"""Requests as tritonclient makes them, decoded; responses read back."""

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import (
    AnswerTooLargeError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
)
from services.contracts.kserve.tensors import (
    NUMPY_FROM_DATATYPE,
    bytes_from_array,
)
from services.contracts.transport.frames import MAX_PAYLOAD_BYTES
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.codec import call_from_request
from services.replica.request.infer_call import InferCall
from services.replica.request.response import response_from_outputs
from services.replica.request.signature import Signature
from tests.unit.services.replica.codec_requests import (
    SIGNATURE,
    one_input_model,
    text_request,
    triton_request,
)

TYPED_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}

# bfloat16 is nothing that tritonclient has, and strings are in test_strings.
DATATYPES = sorted(set(NUMPY_FROM_DATATYPE) - {"BF16", "BYTES"})


# ---------------------------------------------------------------- what is right


@given(
    datatype=st.sampled_from(DATATYPES),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    request_id=st.text(max_size=8),
)
def test_whatever_tritonclient_sends_is_decoded(
    datatype: str, shape: list[int], seed: int, request_id: str
) -> None:
    dtype = NUMPY_FROM_DATATYPE[datatype]
    rng = np.random.default_rng(seed)
    array = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    if datatype == "BOOL":
        array = rng.integers(0, 2, shape).astype(bool)
    dims = tuple(f"d{axis}" for axis in range(len(shape)))
    signature = Signature.from_model(one_input_model(datatype, dims))
    call = call_from_request(triton_request({"x": array}, request_id=request_id), signature)
    assert bytes_from_array(call.inputs["x"]) == array.tobytes()
    assert call.inputs["x"].dtype == dtype
    assert call.sizes == dict(zip(dims, shape, strict=True))
    assert call.request_id == request_id
    assert call.outputs == ("y",)


def test_raw_contents_are_views_of_the_requests_bytes() -> None:
    payload = text_request().SerializeToString()
    call = call_from_request(payload, SIGNATURE)
    whole = np.frombuffer(payload, np.uint8)
    assert np.shares_memory(call.inputs["ids"], whole)
    assert np.shares_memory(call.inputs["mask"], whole)


def test_bfloat16_comes_and_goes_raw() -> None:
    signature = Signature.from_model(one_input_model("BF16", ("batch",)))
    array = np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[array.tobytes()])
    request.inputs.add(name="x", datatype="BF16", shape=[2])
    call = call_from_request(request.SerializeToString(), signature)
    np.testing.assert_array_equal(call.inputs["x"], array)
    response = pb.ModelInferResponse.FromString(
        response_from_outputs(call, {"y": array}, signature)
    )
    assert response.raw_output_contents[0] == array.tobytes()


def test_an_answer_that_no_message_holds_is_an_error_before_it_counts_as_a_success() -> None:
    signature = Signature.from_model(one_input_model("UINT8", ("batch",)))
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"1"])
    request.inputs.add(name="x", datatype="UINT8", shape=[1])
    call = call_from_request(request.SerializeToString(), signature)
    # Pages of zeros that nothing reads take no memory.
    most = np.zeros(MAX_PAYLOAD_BYTES, np.uint8)
    with pytest.raises(AnswerTooLargeError, match=r"bytes, at most 2147483647 fit a message"):
        response_from_outputs(call, {"y": most}, signature)


@pytest.mark.parametrize("datatype", sorted(TYPED_FIELDS))
def test_typed_contents_of_every_typed_datatype(datatype: str) -> None:
    signature = Signature.from_model(one_input_model(datatype, ("batch", 2)))
    values = [True, False, True, True] if datatype == "BOOL" else [0, 1, 2, 100]
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[2, 2])
    getattr(tensor.contents, TYPED_FIELDS[datatype]).extend(values)
    call = call_from_request(request.SerializeToString(), signature)
    assert call.inputs["x"].dtype == NUMPY_FROM_DATATYPE[datatype]
    assert call.inputs["x"].tolist() == [values[:2], values[2:]]


def test_inputs_may_come_in_any_order_and_raw_fields_anywhere() -> None:
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    mask = np.ones((2, 3), np.int64)
    payload = triton_request({"mask": mask, "ids": ids})
    # protobuf allows fields in any order: raw contents first is the same message
    request = pb.ModelInferRequest.FromString(payload)
    raw = pb.ModelInferRequest(raw_input_contents=request.raw_input_contents)
    request.ClearField("raw_input_contents")
    for spelled in (payload, raw.SerializeToString() + request.SerializeToString()):
        call = call_from_request(spelled, SIGNATURE)
        np.testing.assert_array_equal(call.inputs["ids"], ids)
        np.testing.assert_array_equal(call.inputs["mask"], mask)


def test_requested_outputs_keep_their_order() -> None:
    ids = np.ones((1, 2), np.int64)
    payload = triton_request({"ids": ids, "mask": ids}, outputs=["pooled", "positions"])
    assert call_from_request(payload, SIGNATURE).outputs == ("pooled", "positions")


def test_timeout_and_priority_parameters_are_understood() -> None:
    ids = np.ones((1, 2), np.int64)
    payload = triton_request({"ids": ids, "mask": ids}, timeout=2500, priority=1)
    assert call_from_request(payload, SIGNATURE).timeout_s == pytest.approx(0.0025)
    plain = triton_request({"ids": ids, "mask": ids}, parameters={"mine": "x"})
    assert call_from_request(plain, SIGNATURE).timeout_s is None


@pytest.mark.parametrize("is_raw", [True, False])
def test_who_is_not_admitted_is_told_before_tensors_are_decoded(is_raw: bool) -> None:
    asked: list[int] = []

    def refuse(priority: int) -> None:
        asked.append(priority)
        raise OverloadedError("full")

    request = text_request()
    request.parameters["priority"].uint64_param = 3
    # Whoever decodes it finds too few bytes or elements.
    if is_raw:
        request.raw_input_contents[0] = b"short"
    else:
        del request.raw_input_contents[:]
        for tensor in request.inputs:
            tensor.contents.int64_contents.append(7)
    with pytest.raises(OverloadedError):
        call_from_request(request.SerializeToString(), SIGNATURE, refuse)
    assert asked == [3]


# ---------------------------------------------------------------- responses


@given(
    datatype=st.sampled_from(DATATYPES),
    shape=st.lists(st.integers(0, 300), min_size=1, max_size=2),
)
def test_tritonclient_reads_what_was_answered(datatype: str, shape: list[int]) -> None:
    dims = tuple(f"d{axis}" for axis in range(len(shape)))
    signature = Signature.from_model(one_input_model(datatype, dims))
    call = InferCall(inputs={}, sizes={}, outputs=("y",), request_id="r9")
    array = np.zeros(shape, NUMPY_FROM_DATATYPE[datatype])
    array.reshape(-1)[::2] = 1
    result = read_response(response_from_outputs(call, {"y": array}, signature))
    np.testing.assert_array_equal(result.as_numpy("y"), array)
    answer = result.get_response()
    assert (answer.id, answer.model_name, answer.model_version) == ("r9", "m", "3")
    assert len(answer.raw_output_contents) == len(answer.outputs) == 1


def read_response(payload: bytes) -> triton.InferResult:
    from tritonclient.grpc import service_pb2

    return triton.InferResult(service_pb2.ModelInferResponse.FromString(payload))


def test_outputs_are_answered_as_requested_also_when_not_contiguous() -> None:
    call = InferCall(inputs={}, sizes={}, outputs=("pooled", "positions"))
    positions = np.arange(12, dtype=np.int64).reshape(3, 4).T
    pooled = np.array([[5]], np.int64)
    result = read_response(
        response_from_outputs(call, {"positions": positions, "pooled": pooled}, SIGNATURE)
    )
    assert [output.name for output in result.get_response().outputs] == ["pooled", "positions"]
    np.testing.assert_array_equal(result.as_numpy("positions"), positions)
    np.testing.assert_array_equal(result.as_numpy("pooled"), pooled)


def test_an_engine_that_breaks_its_promise_is_an_engine_error() -> None:
    call = InferCall(inputs={}, sizes={}, outputs=("pooled",))
    with pytest.raises(EngineError, match="no output 'pooled'"):
        response_from_outputs(call, {}, SIGNATURE)
    with pytest.raises(EngineError, match="expected datatype INT64 for output 'pooled', got FP32"):
        response_from_outputs(call, {"pooled": np.zeros((1, 1), np.float32)}, SIGNATURE)


def test_a_model_without_buckets_takes_those_that_it_is_built_for() -> None:
    """No engine may take its place that refuses what was answered before."""
    signature = Signature.from_model(one_input_model("FP32", ("batch", "width")))
    largest = np.zeros((8, 128), np.float32)
    sizes = call_from_request(triton_request({"x": largest}), signature).sizes
    assert sizes == {"batch": 8, "width": 128}
    for rows, width, words in ((9, 1, "batch-size must be <= 8"), (1, 129, "batch 1..8, width 1")):
        request = triton_request({"x": np.zeros((rows, width), np.float32)})
        with pytest.raises(InvalidRequestError, match=words):
            call_from_request(request, signature)
