"""Every way for a request to be wrong, and what it is told."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import (
    InvalidRequestError,
    NotFoundError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.contracts.kserve.protobuf_wire import MAX_FIELDS
from services.contracts.kserve.request_wire import split_request
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.codec import call_from_request
from services.replica.request.signature import Signature
from tests.unit.services.replica.codec_requests import SIGNATURE, one_input_model, text_request

Spoil = Callable[[pb.ModelInferRequest], object]
INVALID: dict[str, tuple[Spoil, str]] = {
    "unknown input": (
        lambda r: setattr(r.inputs[0], "name", "idz"),
        r"unexpected inference input 'idz' for model 'm', did you mean 'ids'\?; expected",
    ),
    "missing input": (
        lambda r: (r.inputs.pop(), r.raw_input_contents.pop()),
        r"expected 2 inputs but got 1 inputs for model 'm'.*missing required input\(s\) \['mask'\]",
    ),
    "no inputs": (
        lambda r: (r.ClearField("inputs"), r.ClearField("raw_input_contents")),
        "expected 2 inputs but got 0",
    ),
    "duplicate input": (
        lambda r: setattr(r.inputs[1], "name", "ids"),
        "more than once.*'ids', 'ids'",
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
        lambda r: r.inputs[0].shape.__setitem__(slice(None), [-2, -3]),
        "dimension is negative",
    ),
    "byte count": (
        lambda r: r.raw_input_contents.__setitem__(0, b"\0" * 47),
        r"input 'ids' for model 'm': expected 48 bytes for INT64 \[2, 3\], got 47",
    ),
    "too few raw entries": (
        lambda r: r.raw_input_contents.pop(),
        "expected 2 raw_input_contents.*got 1",
    ),
    "too many raw entries": (
        lambda r: r.raw_input_contents.append(b""),
        "expected 2 raw_input_contents.*got 3",
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
        lambda r: reshape(r, (0, 3)),
        "dimension 'batch' for model 'm': expected at least 1, got 0",
    ),
    "batch above max": (
        lambda r: reshape(r, (9, 3)),
        "batch-size must be <= 8 for 'm', got 9; send parts of at most 8 rows, or .* of 'batch'",
    ),
    "sequence above max": (
        lambda r: reshape(r, (2, 17)),
        "one of batch 1..8, sequence 1..16, got.*17",
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
        lambda r: (r.outputs.add(name="pooled"), r.outputs.add(name="pooled")),
        "more than once",
    ),
    "reserved parameter": (
        lambda r: setattr(r.parameters["triton_x"], "bool_param", True),
        "'triton_x'.*reserved",
    ),
    "parameter of Triton's HTTP front": (
        lambda r: setattr(r.parameters["headers"], "string_param", ""),
        "'headers'.*reserved",
    ),
    "no classes": (
        lambda r: setattr(
            r.outputs.add(name="pooled").parameters["classification"], "int64_param", 0
        ),
        "'classification' of output 'pooled' for model 'm': expected int64_param >= 1",
    ),
    "priority of a wrong type": (
        lambda r: setattr(r.parameters["priority"], "string_param", "1"),
        "'priority'.*expected int64_param.*got string_param",
    ),
    "negative timeout": (
        lambda r: setattr(r.parameters["timeout"], "int64_param", -1),
        "'timeout'",
    ),
}
UNSUPPORTED: dict[str, Spoil] = {
    "sequence_id": lambda r: setattr(r.parameters["sequence_id"], "int64_param", 5),
    "shared_memory_region": lambda r: setattr(
        r.inputs[0].parameters["shared_memory_region"], "string_param", "r"
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


def test_a_request_of_very_many_fields_is_refused() -> None:
    # A field that the message does not know is walked as well.
    for field in (b"\x3a\x00", b"\x50\x00"):
        split_request(field * MAX_FIELDS)
        with pytest.raises(InvalidRequestError, match=f"at most {MAX_FIELDS} fields"):
            split_request(field * (MAX_FIELDS + 1))
