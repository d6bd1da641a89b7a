"""Tensors: every datatype to bytes and back, no copies, and what is refused."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import (
    DATATYPE_FROM_NUMPY,
    NUMPY_FROM_DATATYPE,
    array_from_bytes,
    bytes_from_array,
    check_array,
)

# Strings have lengths of their own: see test_byte_strings.
DATATYPES = sorted(set(NUMPY_FROM_DATATYPE) - {"BYTES"})
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes]:
    """A datatype, a shape and as many bytes; a BOOL's byte is 0 or 1."""
    datatype = draw(st.sampled_from(DATATYPES))
    shape = draw(shapes)
    num_bytes = math.prod(shape) * NUMPY_FROM_DATATYPE[datatype].itemsize
    data = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    if datatype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return datatype, shape, data


@given(tensors())
def test_bytes_come_back_from_an_array(tensor: tuple[str, tuple[int, ...], bytes]) -> None:
    datatype, shape, data = tensor
    array = array_from_bytes(data, datatype, shape)
    assert array.shape == shape
    assert DATATYPE_FROM_NUMPY[array.dtype] == datatype
    assert bytes_from_array(array) == data


@given(tensors(), st.integers(1, 9))
def test_a_wrong_byte_count_is_refused_with_both_counts(
    tensor: tuple[str, tuple[int, ...], bytes], extra: int
) -> None:
    datatype, shape, data = tensor
    with pytest.raises(InvalidRequestError, match=f"expected {len(data)} bytes for {datatype}"):
        array_from_bytes(data + b"x" * extra, datatype, shape)


def test_the_byte_order_is_little_and_rows_come_first() -> None:
    array = np.array([[1, 2], [3, 4]], dtype=np.int16)
    assert bytes_from_array(array) == bytes([1, 0, 2, 0, 3, 0, 4, 0])
    assert bytes_from_array(array.T) == bytes([1, 0, 3, 0, 2, 0, 4, 0])


def test_bf16_is_the_upper_half_of_fp32() -> None:
    array = array_from_bytes(b"\x80\x3f\x20\xc0", "BF16", (2,))
    assert array.dtype == ml_dtypes.bfloat16
    assert array.astype(np.float32).tolist() == [1.0, -2.5]


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_an_array_is_a_read_only_view_of_its_buffer(buffer: Any) -> None:
    data = buffer(b"\x01\x00\x00\x00")
    array = array_from_bytes(data, "INT32", (1,))
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, dtype=np.uint8))


def test_a_view_of_wider_items_counts_its_bytes() -> None:
    view = memoryview(np.array([1.0, 2.0], dtype=np.float32))
    assert array_from_bytes(view, "FP32", (2,)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("datatype", "shape", "message"),
    [
        ("FP8", (1,), "datatype 'FP8' is unknown; expected one of BOOL,"),
        ("STRING", (1,), "datatype 'STRING' is unknown; expected one of .*, BYTES"),
        ("FP32", (-1,), r"shape \[-1\] has a negative dimension"),
        ("FP32", (-1, -1), "negative dimension"),
        ("FP32", (2,), r"expected 8 bytes for FP32 \[2\], got 4"),
    ],
)
def test_a_wrong_tensor_is_refused(datatype: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        array_from_bytes(b"\0" * 4, datatype, shape)


def test_the_table_and_its_inverse_are_one_to_one() -> None:
    assert len(DATATYPE_FROM_NUMPY) == len(NUMPY_FROM_DATATYPE) == 14


SPEC = TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence", 3))


def test_dynamic_dimensions_are_minus_one_on_the_wire() -> None:
    assert SPEC.wire_shape == (-1, -1, 3)


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 0, 3)])
def test_a_spec_takes_any_size_of_a_dynamic_dimension(shape: tuple[int, ...]) -> None:
    check_array(SPEC, np.zeros(shape, dtype=np.int64))


@pytest.mark.parametrize("shape", [(), (1, 3), (1, 1, 4), (1, 1, 3, 1)])
def test_a_spec_refuses_another_shape_saying_both(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_array(SPEC, np.zeros(shape, dtype=np.int64))
    assert str(caught.value) == (
        f"unexpected shape for input 'ids': expected [-1, -1, 3], got {list(shape)}"
    )


@pytest.mark.parametrize(
    ("dtype", "found"), [(np.int32, "INT32"), (np.complex64, "complex64"), (">i8", ">i8")]
)
def test_a_spec_refuses_another_datatype_saying_both(dtype: Any, found: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'ids': expected datatype INT64, got {found}"):
        check_array(SPEC, np.zeros((1, 1, 3), dtype=dtype))
