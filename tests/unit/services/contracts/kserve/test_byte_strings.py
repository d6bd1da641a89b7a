"""BYTES tensors: round trips, and whatever may come from a stranger instead of strings."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import (
    MAX_STRINGS,
    check_num_strings,
    strings_from_array,
    strings_from_elements,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import array_from_bytes, bytes_from_array, check_array

SPEC = TensorSpec(name="words", datatype="BYTES", shape=("batch", 2))
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], list[str]]:
    """A shape and as many strings."""
    shape, text = draw(shapes), st.text(max_size=12)
    num = math.prod(shape)
    return shape, draw(st.lists(text, min_size=num, max_size=num))


def array_of(strings: list[Any], shape: tuple[int, ...]) -> Any:
    """An array of objects; numpy's own constructor would look into them."""
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    return array.reshape(shape)


@given(tensors())
@example(((2,), ["a\0b\0", "Жизнь 🎈"]))
def test_strings_come_back_and_are_written_as_tritonclient_writes_them(
    tensor: tuple[tuple[int, ...], list[str]],
) -> None:
    shape, strings = tensor
    data = bytes_from_array(array_of(strings, shape))
    array = array_from_bytes(data, "BYTES", shape)
    assert array.shape == shape
    assert array.dtype == object
    assert not array.flags.writeable
    assert array.ravel().tolist() == strings
    assert [each.decode() for each in deserialize_bytes_tensor(data)] == strings
    if strings:  # of nothing it makes an array
        theirs = serialize_byte_tensor(array_of([each.encode() for each in strings], shape))
        assert theirs is not None
        assert theirs.item() == data


@given(st.binary(max_size=64), shapes)
@example(b"\xff\xff\xff\xff", (1,))
@example(b"\x01\x00\x00\x00\xff", (1,))
def test_hostile_bytes_are_strings_or_are_refused(data: bytes, shape: tuple[int, ...]) -> None:
    try:
        array = array_from_bytes(data, "BYTES", shape)
    except InvalidRequestError:
        return
    assert bytes_from_array(array) == data


@given(tensors(), st.data())
def test_cut_and_longer_bytes_are_refused(
    tensor: tuple[tuple[int, ...], list[str]], data: st.DataObject
) -> None:
    shape, strings = tensor
    whole = bytes_from_array(array_of(strings, shape))
    end = data.draw(st.integers(0, len(whole)))
    wrong = whole[:end] if end < len(whole) else whole + b"x"
    with pytest.raises(InvalidRequestError):
        array_from_bytes(wrong, "BYTES", shape)


@pytest.mark.parametrize(
    ("data", "shape", "message"),
    [
        (b"\x01\0\0\0a", (2,), r"expected 2 strings for BYTES \[2\], each after 4 bytes of"),
        (b"\x01\0\0\0a\0\0\0", (2,), "got 1: the 3 bytes after them hold no length"),
        (b"\x05\0\0\0a", (1,), "element 0 of .*: expected 5 bytes as its length says, got 1"),
        (b"\x01\0\0\0ab", (1,), r"expected 1 strings for BYTES \[1\], got 1 bytes more"),
        (b"\0\0\0\0\x02\0\0\0a\xff", (2,), "element 1: expected UTF-8, .* got byte 0xff at 1"),
        (b"", (-1,), "negative dimension"),
        (b"", (2**31, 2**31), "got 0 bytes"),
    ],
)
def test_what_is_wrong_with_the_bytes_is_said(
    data: bytes, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        array_from_bytes(data, "BYTES", shape)


def test_elements_that_are_no_text_are_refused_by_their_number() -> None:
    assert strings_from_elements([b"", "Ж".encode()], (2, 1)).tolist() == [[""], ["Ж"]]
    with pytest.raises(InvalidRequestError, match="element 1: expected UTF-8, .* byte 0x80 at 0"):
        strings_from_elements([b"a", b"\x80"], (2,))


def test_the_number_of_strings_is_bounded_by_the_shape_alone() -> None:
    check_num_strings("input 'x'", (MAX_STRINGS,))
    with pytest.raises(InvalidRequestError, match=r"input 'x': shape \[2, 1000000\] has 2000000"):
        check_num_strings("input 'x'", (2, MAX_STRINGS))


@pytest.mark.parametrize(
    "array",
    [
        np.array([["a", "Ж"]]),
        np.array([["a", "Ж".encode()]], dtype=object),
        np.array([[b"a", "Ж".encode()]]),
        np.array([[np.str_("a"), np.bytes_("Ж".encode())]], dtype=object),
    ],
)
def test_every_form_of_text_that_numpy_has_becomes_one(array: Any) -> None:
    strings = strings_from_array(array)
    check_array(SPEC, strings)
    assert strings.tolist() == [["a", "Ж"]]


def test_numbers_are_left_alone_and_other_objects_are_refused() -> None:
    numbers = np.arange(3)
    assert strings_from_array(numbers) is numbers
    with pytest.raises(InvalidRequestError, match="element 1: expected text, got NoneType"):
        strings_from_array(np.array(["a", None], dtype=object))
    with pytest.raises(InvalidRequestError, match="element 0: expected UTF-8"):
        strings_from_array(np.array([b"\xff"]))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 2), np.int64), "expected datatype BYTES, got INT64"),
        (array_of(["a", b"b"], (1, 2)), "element 1 is bytes, expected str"),
        (array_of(["a", None], (1, 2)), "element 1 is NoneType, expected str"),
        (array_of(["a"], (1, 1)), r"expected \[-1, 2\], got \[1, 1\]"),
    ],
)
def test_a_spec_takes_strings_alone(array: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_array(SPEC, array)


@pytest.mark.parametrize("element", [b"a", None, 3, "\ud800"])
def test_what_has_no_form_in_utf8_is_not_written(element: object) -> None:
    with pytest.raises(InvalidRequestError, match="form in UTF-8"):
        bytes_from_array(array_of([element], (1,)))
