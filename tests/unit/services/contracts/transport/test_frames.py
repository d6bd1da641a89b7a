"""Frames: every value survives the wire, everything else is refused with a reason."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts import errors
from services.contracts.errors import (
    InvalidModelError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    SmeltError,
    UnsupportedFeatureError,
    UnsupportedGraphError,
)
from services.contracts.transport.frames import (
    HEADER,
    MAX_MESSAGE_CHARS,
    MAX_META_BYTES,
    NO_TOKEN,
    Frame,
    InferFrame,
    Kind,
    check_header,
    decode_error,
    decode_hello,
    decode_infer,
    encode_error,
    encode_hello,
    encode_infer,
    header,
)

ERROR_CLASSES = [
    c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SmeltError)
]


def _infer_frame(meta: bytes, payload: bytes = b"") -> Frame:
    return Frame(Kind.INFER, 7, meta, payload)


def _error_frame(error: SmeltError) -> Frame:
    return Frame(Kind.ERROR, 7, *encode_error(error))


@given(
    trace=st.text(max_size=100),
    deadline_s=st.none() | st.floats(min_value=0, max_value=1e9),
    request=st.binary(max_size=100),
)
def test_a_request_survives_the_wire(**values: object) -> None:
    frame = InferFrame(**values)  # type: ignore[arg-type]
    assert decode_infer(_infer_frame(encode_infer(frame), frame.request)) == frame  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"trace": "t" * MAX_META_BYTES},
        {"deadline_s": math.nan},
    ],
)
def test_a_request_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    values = {"request": b"", **change}
    with pytest.raises(InvalidRequestError, match="wanted at most"):
        encode_infer(InferFrame(**values))  # type: ignore[arg-type]


META = encode_infer(InferFrame(b"", trace="abc"))


@pytest.mark.parametrize("meta", [b"", META[:7], META[:-3] + b"\xff" * 3])
def test_a_broken_meta_of_infer_is_refused(meta: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"meta of INFER 7 .* is broken"):
        decode_infer(_infer_frame(meta))


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_an_error_keeps_its_class_and_message(error_class: type[SmeltError]) -> None:
    error = decode_error(_error_frame(error_class("what, where, found, wanted, fix")))
    assert str(error) == str(error_class("what, where, found, wanted, fix"))
    # Its message is composed when it is raised, so it arrives as the class above it.
    assert type(error) is (
        InvalidModelError if error_class is UnsupportedGraphError else error_class
    )


def test_overload_keeps_its_retry_delay() -> None:
    error = decode_error(_error_frame(OverloadedError("full", retry_after_s=1.5)))
    assert isinstance(error, OverloadedError)
    assert error.retry_after_s == 1.5


@pytest.mark.parametrize("name", ["FutureError", "os", "Exception", ""])
def test_an_error_of_an_unknown_class_is_a_plain_one(name: str) -> None:
    meta = encode_error(SmeltError(""))[0].removesuffix(b"SmeltError") + name.encode()
    error = decode_error(Frame(Kind.ERROR, 7, meta, b"text"))
    assert (type(error), str(error)) == (SmeltError, "text")


@pytest.mark.parametrize("meta", [b"", b"abc", b"\xff" * 20])
def test_a_broken_meta_of_error_still_gives_the_message(meta: bytes) -> None:
    assert str(decode_error(Frame(Kind.ERROR, 7, meta, b"text\xff"))) == "text�"


def test_a_long_message_is_cut() -> None:
    assert len(str(decode_error(_error_frame(NotReadyError("x" * 10**6))))) == MAX_MESSAGE_CHARS


def test_hello_carries_the_token() -> None:
    for token in (NO_TOKEN, bytes(range(32))):
        assert decode_hello(Frame(Kind.HELLO, 0, encode_hello(token), b"")) == token


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (Kind.INFER, encode_hello()),
        (Kind.HELLO, encode_hello()[:-1]),
        (Kind.HELLO, b"HTTP" + encode_hello()[4:]),
    ],
)
def test_another_opening_is_refused(kind: Kind, meta: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="HELLO"):
        decode_hello(Frame(kind, 0, meta, b""))


def test_another_protocol_version_is_refused_with_both_named() -> None:
    meta = bytearray(encode_hello())
    meta[5] = 9
    with pytest.raises(UnsupportedFeatureError, match="frame protocol 9, this process 2"):
        decode_hello(Frame(Kind.HELLO, 0, bytes(meta), b""))


def test_a_header_keeps_its_fields() -> None:
    fields = HEADER.unpack(header(Kind.OK, 2**64 - 1, MAX_META_BYTES, 2**31 - 1))
    assert fields == (Kind.OK, 0, MAX_META_BYTES, 2**31 - 1, 2**64 - 1)
    assert check_header(fields, 2**31 - 1) is Kind.OK


@pytest.mark.parametrize(
    "fields",
    [(0, 0, 0, 0, 0), (12, 0, 0, 0, 0), (1, 1, 0, 0, 0), (1, 0, MAX_META_BYTES + 1, 0, 0)],
)
def test_a_header_nobody_writes_is_refused(fields: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="bytes are not a frame"):
        check_header(fields, 100)


def test_an_oversize_frame_is_refused_with_both_sizes() -> None:
    with pytest.raises(InvalidRequestError, match=r"INFER has 101 bytes .* at most 100"):
        check_header((2, 0, 0, 101, 5), 100)
    assert check_header((2, 0, 0, 100, 5), 100) is Kind.INFER
