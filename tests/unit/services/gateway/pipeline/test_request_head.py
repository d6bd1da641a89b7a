"""The head that is walked equals the head that protobuf parses, for every sequence of bytes."""

import re

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.protobuf_wire import MAX_FIELDS
from services.contracts.kserve.request_limits import MAX_NAME_BYTES
from services.gateway.pipeline.request_head import RequestHead, request_head_from_bytes
from services.pb import open_inference_v2_pb2 as pb

TEXT = st.text(max_size=200)


def _parsed(body: bytes) -> RequestHead | None:
    try:
        request = pb.ModelInferRequest.FromString(body)
    except DecodeError:
        return None
    return RequestHead(request.model_name, request.model_version, request.id)


def _walked(body: bytes) -> RequestHead | None:
    """None for what is refused, but for groups: nothing writes them, and replicas refuse them."""
    try:
        return request_head_from_bytes(body)
    except InvalidRequestError as error:
        return _parsed(body) if re.search("wire type [34]", str(error)) else None


@st.composite
def _requests(draw: st.DrawFn) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(
        model_name=draw(TEXT),
        model_version=draw(TEXT),
        id=draw(TEXT),
        raw_input_contents=draw(st.lists(st.binary(max_size=300), max_size=3)),
    )
    for name in draw(st.lists(TEXT, max_size=3)):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
    if draw(st.booleans()):
        request.parameters["priority"].uint64_param = draw(st.integers(0, 2**64 - 1))
    return request


@given(st.lists(_requests(), min_size=1, max_size=3))
def test_equals_the_parser_for_requests_joined_in_any_order(
    requests: list[pb.ModelInferRequest],
) -> None:
    """Joined messages repeat fields, in every order; protobuf then merges them."""
    body = b"".join(request.SerializeToString() for request in requests)
    assert _walked(body) == _parsed(body) is not None


# Fields of random numbers and wire types, right and wrong, whole and cut off.
_FIELDS = st.builds(
    lambda tag, size, data: bytes((*tag, *size)) + data,
    st.sampled_from([(n << 3 | w,) for n in range(16) for w in range(6)] + [(0x8A, 0x01)]),
    st.sampled_from([(0,), (1,), (3,), (0x81, 0x00), (0xFF, 0x7F), (0xFF,) * 6, (0x80,)]),
    st.binary(max_size=4),
)


@given(st.lists(st.one_of(_FIELDS, st.binary(max_size=6)), max_size=6).map(b"".join))
def test_never_contradicts_the_parser(body: bytes) -> None:
    """What is refused protobuf refuses too; what protobuf reads is read the same.

    The walk may accept what the parser refuses, as it does not look into tensors.
    """
    parsed, walked = _parsed(body), _walked(body)
    if parsed is not None:
        assert walked == parsed
    if walked is None:
        assert parsed is None


def test_a_large_tensor_is_stepped_over() -> None:
    request = pb.ModelInferRequest(raw_input_contents=[bytes(3_000_000)])
    body = request.SerializeToString() + pb.ModelInferRequest(model_name="late").SerializeToString()
    assert request_head_from_bytes(body) == RequestHead("late", "", "")


def test_unknown_fields_are_stepped_over() -> None:
    request = pb.ModelInferRequest(model_name="m", id="7")
    unknown = bytes([15 << 3 | 0, 5])
    assert request_head_from_bytes(unknown + request.SerializeToString()).request_id == "7"


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"hello", b"\x00"])
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"not an inference\.ModelInferRequest"):
        request_head_from_bytes(body)


def test_a_request_of_very_many_fields_is_refused() -> None:
    name, empty = b"\x0a\x01m", b"\x3a\x00"
    assert request_head_from_bytes(name + empty * (MAX_FIELDS - 1)).model_name == "m"
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_FIELDS} fields"):
        request_head_from_bytes(name + empty * MAX_FIELDS)


def test_names_have_limits_and_odd_fields_are_stepped_over() -> None:
    long = pb.ModelInferRequest(model_name="m" * (MAX_NAME_BYTES + 1)).SerializeToString()
    with pytest.raises(InvalidRequestError, match="the model's name: expected at most 1024"):
        request_head_from_bytes(long)
    # A known field of another wire type, or one that is unknown: a parser steps over it too.
    odd, tensor = bytes([1 << 3 | 0, 5]), bytes([0x3A, 0x80, 0x80, 0x08]) + bytes(1 << 17)
    name = pb.ModelInferRequest(model_name="m").SerializeToString()
    unknown = bytes([15 << 3 | 2, 3]) + b"abc"
    for other in (odd, unknown):
        assert request_head_from_bytes(other + name + tensor).model_name == "m"
