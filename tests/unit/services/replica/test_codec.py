"""Requests as tritonclient makes them, decoded; every way to be wrong; responses read back."""

from collections.abc import Callable
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc._utils import _get_inference_request

from services.contracts.errors import (
    EngineError,
    InvalidRequestError,
    NotFoundError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.contracts.manifest import ModelVersion
from services.contracts.tensors import (
    NUMPY_FROM_DATATYPE,
    TensorSpec,
    bytes_from_array,
)
from services.pb import open_inference_v2_pb2 as pb
from services.replica.codec import InferCall, call_from_request, response_from_outputs
from services.replica.signature import Signature
from services.replica.wire import MAX_FIELDS, split_request

from .models import make_model, text_model

SIGNATURE = Signature.from_model(text_model())
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


def one_input_model(datatype: str, shape: tuple[int | str, ...]) -> ModelVersion:
    spec = TensorSpec(name="x", datatype=datatype, shape=shape)
    return make_model((spec,), (spec.model_copy(update={"name": "y"}),))


def triton_request(
    arrays: dict[str, np.ndarray],
    *,
    outputs: list[str] | None = None,
    request_id: str = "",
    version: str = "",
    **options: object,
) -> bytes:
    """The bytes that an unmodified tritonclient would send."""
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), triton_name(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    wanted = None if outputs is None else [triton.InferRequestedOutput(n) for n in outputs]
    known = {"sequence_id": 0, "sequence_start": False, "sequence_end": False, "priority": 0,
             "timeout": None, "parameters": None}  # fmt: skip
    request = _get_inference_request(
        "m", inputs, version, request_id, wanted, **{**known, **options}
    )
    return request.SerializeToString()


def triton_name(dtype: np.dtype) -> str:
    return {value: key for key, value in NUMPY_FROM_DATATYPE.items()}[dtype]


def text_request() -> pb.ModelInferRequest:
    """A good request of 2 rows of 3 tokens, to be spoilt."""
    request = pb.ModelInferRequest(model_name="m", id="r1")
    for name in ("ids", "mask"):
        request.inputs.add(name=name, datatype="INT64", shape=[2, 3])
        request.raw_input_contents.append(bytes_from_array(np.ones((2, 3), np.int64)))
    return request


# ---------------------------------------------------------------- what is right


@given(
    datatype=st.sampled_from(sorted(set(NUMPY_FROM_DATATYPE) - {"BF16"})),
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


# ---------------------------------------------------------------- what is wrong

Spoil = Callable[[pb.ModelInferRequest], object]
INVALID: dict[str, tuple[Spoil, str]] = {
    "unknown input": (
        lambda r: setattr(r.inputs[0], "name", "idz"),
        r"unexpected inference input 'idz' for model 'm'; expected \['ids', 'mask'\]",
    ),
    "missing input": (
        lambda r: (r.inputs.pop(), r.raw_input_contents.pop()),
        r"expected 2 inputs but got 1 inputs for model 'm'.*missing required input\(s\) \['mask'\]",
    ),
    "no inputs": (lambda r: (r.ClearField("inputs"), r.ClearField("raw_input_contents")),
                  "expected 2 inputs but got 0"),
    "duplicate input": (
        lambda r: setattr(r.inputs[1], "name", "ids"), "more than once.*'ids', 'ids'"
    ),
    "datatype": (
        lambda r: setattr(r.inputs[0], "datatype", "FP32"),
        "'ids' for model 'm': expected datatype INT64, got FP32",
    ),
    "no datatype": (lambda r: setattr(r.inputs[0], "datatype", ""), "INT64, got none"),
    "BYTES": (lambda r: setattr(r.inputs[0], "datatype", "BYTES"), "INT64, got BYTES"),
    "rank": (
        lambda r: r.inputs[0].shape.append(1),
        r"unexpected shape for input 'ids' for model 'm'. Expected \[-1, -1\], got \[2, 3, 1\]",
    ),
    "negative dimension": (
        lambda r: r.inputs[0].shape.__setitem__(slice(None), [-2, -3]), "dimension is negative"
    ),
    "byte count": (
        lambda r: r.raw_input_contents.__setitem__(0, b"\0" * 47),
        r"input 'ids' for model 'm': expected 48 bytes for INT64 \[2, 3\], got 47",
    ),
    "too few raw entries": (
        lambda r: r.raw_input_contents.pop(), "expected 2 raw_input_contents.*got 1"
    ),
    "too many raw entries": (
        lambda r: r.raw_input_contents.append(b""), "expected 2 raw_input_contents.*got 3"
    ),
    "raw and typed": (
        lambda r: r.inputs[1].contents.int64_contents.append(1),
        "must not be specified when using raw_input_contents for 'mask' for model 'm'",
    ),
    "no data": (
        lambda r: r.ClearField("raw_input_contents"),
        "unable to find data for input tensor 'ids' for model 'm'",
    ),
    "zero rows": (
        lambda r: reshape(r, (0, 3)), "dimension 'batch' for model 'm': expected at least 1, got 0"
    ),
    "batch above max": (
        lambda r: reshape(r, (9, 3)), "batch-size must be <= 8 for 'm', got 9"
    ),
    "sequence above max": (
        lambda r: reshape(r, (2, 17)), "one of batch8-sequence16, got.*17"
    ),
    "inputs disagree": (
        lambda r: reshape(r, (2, 4), only=1),
        "'mask' for model 'm'. Expected 3 for dimension 'sequence'.*got 4",
    ),
    "unknown output": (
        lambda r: r.outputs.add(name="nope"),
        r"unexpected inference output 'nope' for model 'm'; expected some of \['positions'",
    ),
    "duplicate output": (
        lambda r: (r.outputs.add(name="pooled"), r.outputs.add(name="pooled")), "more than once"
    ),
    "reserved parameter": (
        lambda r: setattr(r.parameters["triton_x"], "bool_param", True), "'triton_x'.*reserved"
    ),
    "priority of a wrong type": (
        lambda r: setattr(r.parameters["priority"], "string_param", "1"),
        "'priority'.*expected int64_param.*got string_param",
    ),
    "negative timeout": (
        lambda r: setattr(r.parameters["timeout"], "int64_param", -1), "'timeout'"
    ),
}  # fmt: skip
UNSUPPORTED: dict[str, Spoil] = {
    "sequence_id": lambda r: setattr(r.parameters["sequence_id"], "int64_param", 5),
    "shared_memory_region": lambda r: setattr(
        r.inputs[0].parameters["shared_memory_region"], "string_param", "r"
    ),
    "classification": lambda r: setattr(
        r.outputs.add(name="pooled").parameters["classification"], "int64_param", 3
    ),
}


def reshape(request: pb.ModelInferRequest, shape: tuple[int, int], only: int | None = None) -> None:
    for index in range(2) if only is None else [only]:
        request.inputs[index].shape[:] = shape
        request.raw_input_contents[index] = b"\0" * (8 * shape[0] * shape[1])


@pytest.mark.parametrize("fault", sorted(INVALID))
def test_wrong_requests_are_refused_saying_expected_and_got(fault: str) -> None:
    spoil, message = INVALID[fault]
    request = text_request()
    call_from_request(request.SerializeToString(), SIGNATURE)  # good before
    spoil(request)
    with pytest.raises(InvalidRequestError, match=message):
        call_from_request(request.SerializeToString(), SIGNATURE)


@pytest.mark.parametrize("feature", sorted(UNSUPPORTED))
def test_features_that_are_not_offered_are_named(feature: str) -> None:
    request = text_request()
    UNSUPPORTED[feature](request)
    with pytest.raises(UnsupportedFeatureError, match=feature):
        call_from_request(request.SerializeToString(), SIGNATURE)


@pytest.mark.parametrize(
    ("datatype", "field", "values", "message"),
    [
        ("INT64", "fp32_contents", [1.0, 2.0], "expected INT64 data in int64_contents, got fp32"),
        ("INT64", "int64_contents", [1], "expected 2 elements for shape .2., got 1"),
        ("INT8", "int_contents", [1, 300], "out of range for INT8"),
        ("UINT16", "uint_contents", [1, 70000], "out of range for UINT16"),
        ("FP16", "fp32_contents", [1.0, 2.0], "FP16 has no typed contents"),
        ("BF16", "fp32_contents", [1.0, 2.0], "BF16 has no typed contents"),
    ],
)
def test_wrong_typed_contents(datatype: str, field: str, values: list[float], message: str) -> None:
    signature = Signature.from_model(one_input_model(datatype, ("batch",)))
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[2])
    getattr(tensor.contents, field).extend(values)
    with pytest.raises(InvalidRequestError, match=message):
        call_from_request(request.SerializeToString(), signature)


def test_another_model_or_version_is_not_found() -> None:
    for change, message in (
        ({"model_name": "n"}, "'n' is not found"),
        ({"model_version": "4"}, "version 4 is not found; this replica serves version 3"),
    ):
        request = text_request()
        for field, value in change.items():
            setattr(request, field, value)
        with pytest.raises(NotFoundError, match=message):
            call_from_request(request.SerializeToString(), SIGNATURE)
    request = text_request()
    request.model_version = "3"
    call_from_request(request.SerializeToString(), SIGNATURE)


@given(payload=st.binary(max_size=64))
def test_any_bytes_get_an_error_of_ours(payload: bytes) -> None:
    with pytest.raises(SmeltError):
        call_from_request(payload, SIGNATURE)


@given(cut=st.integers(1, 180), flip=st.integers(0, 255))
def test_damaged_requests_decode_or_get_an_error_of_ours(cut: int, flip: int) -> None:
    payload = bytearray(text_request().SerializeToString())
    payload[-cut % len(payload)] ^= flip
    for damaged in (bytes(payload), bytes(payload[:-cut])):
        with suppress(SmeltError):
            assert call_from_request(damaged, SIGNATURE).sizes


# ---------------------------------------------------------------- responses


@given(
    datatype=st.sampled_from(sorted(set(NUMPY_FROM_DATATYPE) - {"BF16"})),
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


def test_a_model_without_buckets_takes_any_positive_size() -> None:
    signature = Signature.from_model(one_input_model("FP32", ("batch",)))
    array = np.zeros(1000, np.float32)
    assert call_from_request(triton_request({"x": array}), signature).sizes == {"batch": 1000}


def test_a_request_of_very_many_fields_is_refused() -> None:
    # A field that the message does not know is walked as well.
    for field in (b"\x3a\x00", b"\x50\x00"):
        split_request(field * MAX_FIELDS)
        with pytest.raises(InvalidRequestError, match=f"more than {MAX_FIELDS} fields"):
            split_request(field * (MAX_FIELDS + 1))
