"""What a request's head may hold, and that it is refused before a parser sees it."""

from collections.abc import Callable

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve import request_limits as limits
from services.contracts.kserve.protobuf_wire import MAX_FIELDS, fields_of
from services.contracts.kserve.request_limits import check_request_head
from services.pb import open_inference_v2_pb2 as pb

Spoil = Callable[[pb.ModelInferRequest], object]
SHAPE, INPUT, CONTENTS = 3, 5, 5


def request() -> pb.ModelInferRequest:
    """One input of one dimension, one wanted output."""
    made = pb.ModelInferRequest(model_name="m", model_version="1", id="7")
    made.inputs.add(name="x", datatype="FP32", shape=[4])
    made.outputs.add(name="y")
    return made


def part(number: int, value: bytes) -> bytes:
    """A length-delimited field."""
    size, digits = len(value), bytearray()
    while size >= 0x80:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + value


def _parameters(parameters: object, count: int) -> None:
    for number in range(count):
        parameters[str(number)].int64_param = 1  # type: ignore[index]


# How to reach a limit with a count of n, the limit, and the words of what is beyond it.
LIMITS: dict[str, tuple[Callable[[pb.ModelInferRequest, int], object], int, str]] = {
    "model": (
        lambda r, n: setattr(r, "model_name", "é" * (n // 2) + "x" * (n % 2)),
        limits.MAX_NAME_BYTES,
        "the model's name: expected at most 1024 bytes, got 1025",
    ),
    "version": (
        lambda r, n: setattr(r, "model_version", "1" * n),
        limits.MAX_NAME_BYTES,
        "the model's version: expected at most 1024 bytes",
    ),
    "name": (
        lambda r, n: setattr(r.inputs[0], "name", "x" * n),
        limits.MAX_NAME_BYTES,
        "input 0, its name or datatype: expected at most 1024",
    ),
    "datatype": (
        lambda r, n: setattr(r.inputs[0], "datatype", "x" * n),
        limits.MAX_NAME_BYTES,
        "input 0, its name or datatype: expected at most 1024",
    ),
    "output": (
        lambda r, n: setattr(r.outputs[0], "name", "x" * n),
        limits.MAX_NAME_BYTES,
        "requested output 0, its name: expected at most 1024",
    ),
    "key": (
        lambda r, n: setattr(r.parameters["k" * n], "bool_param", True),
        limits.MAX_NAME_BYTES,
        "the request, a parameter's name: expected at most 1024",
    ),
    "tensors": (
        lambda r, n: [r.inputs.add(name="x") for _ in range(n - 1)],
        limits.MAX_TENSORS,
        "the request: expected at most 1024 inputs, got 1025",
    ),
    "outputs": (
        lambda r, n: [r.outputs.add(name="y") for _ in range(n - 1)],
        limits.MAX_TENSORS,
        "the request: expected at most 1024 requested outputs",
    ),
    "parameters": (
        lambda r, n: _parameters(r.parameters, n),
        limits.MAX_PARAMETERS,
        "the request: expected at most 256 parameters",
    ),
    "of an input": (
        lambda r, n: _parameters(r.inputs[0].parameters, n),
        limits.MAX_PARAMETERS,
        "input 0: expected at most 256 parameters, got 257",
    ),
    "of an output": (
        lambda r, n: _parameters(r.outputs[0].parameters, n),
        limits.MAX_PARAMETERS,
        "requested output 0: expected at most 256 parameters",
    ),
    "rank": (
        lambda r, n: r.inputs[0].shape.extend([1] * (n - 1)),
        limits.MAX_DIMS,
        "input 0: expected at most 32 dimensions, got 33",
    ),
    "elements": (
        lambda r, n: r.inputs[0].shape.__setitem__(slice(None), [1, n]),
        limits.MAX_ELEMENTS,
        r"shape \[1, 2147483648\] has 2147483648 elements",
    ),
}


@pytest.mark.parametrize(("reach", "limit", "words"), LIMITS.values(), ids=LIMITS)
def test_a_limit_may_be_reached_and_not_passed(
    reach: Callable[[pb.ModelInferRequest, int], object], limit: int, words: str
) -> None:
    reached, passed = request(), request()
    reach(reached, limit)
    check_request_head(reached.SerializeToString())
    reach(passed, limit + 1)
    with pytest.raises(InvalidRequestError, match=words):
        check_request_head(passed.SerializeToString())


@pytest.mark.parametrize(
    "shape", [[2**62, 4], [2**31, 2**31, 2**31], [2**63 - 1] * 4, [0, 2**62], [3037000500] * 2]
)
def test_a_product_that_would_overflow_is_refused(shape: list[int]) -> None:
    made = request()
    made.inputs[0].shape[:] = shape
    with pytest.raises(InvalidRequestError, match=r"elements, expected at most 2147483647"):
        check_request_head(made.SerializeToString())


def test_negative_dimensions_are_left_to_whoever_knows_the_model() -> None:
    made = request()
    made.inputs[0].shape[:] = [-1, -(2**63), 4]
    check_request_head(made.SerializeToString())


def test_a_shape_that_is_not_packed_is_counted_too() -> None:
    dims = bytes([SHAPE << 3, 1])
    check_request_head(part(INPUT, dims * limits.MAX_DIMS))
    with pytest.raises(InvalidRequestError, match="at most 32 dimensions"):
        check_request_head(part(INPUT, dims * (limits.MAX_DIMS + 1)))


@pytest.mark.parametrize("number", [3, 4, 5, 8])
def test_empty_parts_of_parts_are_counted(number: int) -> None:
    """Two bytes each, which a parser would make fifty times as large."""
    many = part(number, b"") * (MAX_FIELDS + 1)
    with pytest.raises(InvalidRequestError, match="expected at most"):
        check_request_head(part(INPUT, many))
    with pytest.raises(InvalidRequestError, match="at most 10000 fields"):
        check_request_head(part(INPUT, part(CONTENTS, many)))


def test_typed_contents_have_a_limit_over_all_inputs() -> None:
    half = part(INPUT, part(CONTENTS, part(2, bytes(limits.MAX_TYPED_BYTES // 2 - 10))))
    check_request_head(half * 2)
    with pytest.raises(InvalidRequestError, match="input 2: typed contents.*raw_input_contents"):
        check_request_head(half * 3)


@pytest.mark.parametrize(
    "bytes_of",
    [b"\x0a\x05ab", b"\x2a\x02\x0a\x05", b"\x2b", b"\x2a\x0c\x1a\x0a" + b"\xff" * 10, b"\x80"],
)
def test_bytes_that_are_no_message_are_refused(bytes_of: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not an inference.ModelInferRequest"):
        check_request_head(bytes_of)


def test_fields_are_found_where_they_lie() -> None:
    head = request().SerializeToString()
    found = {tag >> 3: head[begin:end] for tag, _, begin, end in fields_of(head)}
    assert (found[1], found[2], found[3], found[6]) == (b"m", b"1", b"7", b"\x0a\x01y")
