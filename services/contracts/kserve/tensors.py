"""Tensors of the KServe v2 protocol: its datatypes, numpy's, and bytes between them.

An array is of any shape.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import (
    BYTES,
    STRING_DTYPE,
    bytes_from_strings,
    check_strings,
    strings_from_bytes,
)
from services.contracts.kserve.tensor_spec import TensorSpec

# Where a docstring says nothing else, a mapping has one for each input or output, by its name, in
# the shape of its TensorSpec: a number for each dimension, the same for dimensions of one name.
Array = NDArray[Any]

# The one table; its inverse is derived. Elements of BYTES have lengths of their own: they are
# objects, of type `str` (see `byte_strings`), and no view of anybody's bytes.
NUMPY_FROM_DATATYPE: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    BYTES: STRING_DTYPE,
}
DATATYPE_FROM_NUMPY = {dtype: name for name, dtype in NUMPY_FROM_DATATYPE.items()}


def check_array(spec: TensorSpec, array: Array) -> None:
    """Raise InvalidRequestError when an array does not fit a spec, saying both."""
    found = DATATYPE_FROM_NUMPY.get(array.dtype) or str(array.dtype)
    if found != spec.datatype:
        raise InvalidRequestError(
            f"input '{spec.name}': expected datatype {spec.datatype}, got {found}"
        )
    spec.check_shape(array.shape)
    if found == BYTES:
        check_strings(spec.name, array)


def strings_among(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> str:
    """The first tensor of strings that a model takes or gives, as `input 'x'`, or ""."""
    named = [("input", spec) for spec in inputs] + [("output", spec) for spec in outputs]
    return next((f"{role} '{spec.name}'" for role, spec in named if spec.datatype == BYTES), "")


def array_from_bytes(data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """View raw little-endian bytes as an array [*shape], without a copy; it is read-only.

    Strings are copied, as numpy has no view of them.

    Args:
        data: little-endian, C order.
        datatype: KServe's name, as "FP32".
        shape: no -1 in it.

    Raises:
        InvalidRequestError: unknown datatype, negative dimension, a wrong byte count, or strings
            that are not as `byte_strings` has them.
    """
    dtype = NUMPY_FROM_DATATYPE.get(datatype)
    if dtype is None:
        known = ", ".join(NUMPY_FROM_DATATYPE)
        raise InvalidRequestError(f"datatype '{datatype}' is unknown; expected one of {known}")
    if min(shape, default=0) < 0:
        raise InvalidRequestError(f"shape {list(shape)} has a negative dimension")
    if datatype == BYTES:
        return strings_from_bytes(data, shape)
    expected = math.prod(shape) * dtype.itemsize
    view = memoryview(data)
    if view.nbytes != expected:
        raise InvalidRequestError(
            f"expected {expected} bytes for {datatype} {list(shape)}, got {view.nbytes}"
        )
    # Read-only whatever the buffer is: it belongs to a message, not to the model.
    return np.frombuffer(view.toreadonly(), dtype=dtype).reshape(shape)


def bytes_from_array(array: Array) -> bytes:
    """The raw little-endian bytes of an array, row-major; of strings, each after its length.

    Raises InvalidRequestError for a string that is none.
    """
    if array.dtype == STRING_DTYPE:
        return bytes_from_strings(array)
    return np.ascontiguousarray(array).tobytes()
