"""Tensors of the KServe v2 protocol: its datatypes, numpy's, and bytes between them."""

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from services.contracts.document import Document
from services.contracts.errors import InvalidRequestError

Array = NDArray[Any]

# The one table; its inverse is derived. BYTES has a variable length and is kept apart.
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
}
DATATYPE_FROM_NUMPY = {dtype: name for name, dtype in NUMPY_FROM_DATATYPE.items()}


class TensorSpec(Document):
    """Name, datatype and shape of a model's input or output.

    Attributes:
        name: as in the ONNX graph.
        datatype: KServe v2 name, for example INT64.
        shape: a number for a fixed dimension, its name for a dynamic one.
    """

    name: str
    datatype: str
    shape: tuple[int | str, ...]

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape with -1 for each dynamic dimension, as KServe v2 writes it."""
        return tuple(-1 if isinstance(dim, str) else dim for dim in self.shape)

    def check(self, array: Array) -> None:
        """Raise InvalidRequestError when an array does not fit this spec, saying both."""
        found = DATATYPE_FROM_NUMPY.get(array.dtype) or str(array.dtype)
        if found != self.datatype:
            raise InvalidRequestError(
                f"input '{self.name}': expected datatype {self.datatype}, got {found}"
            )
        self.check_shape(array.shape)

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise InvalidRequestError when a concrete shape does not fit this spec."""
        if len(self.shape) == len(shape):
            for want, got in zip(self.shape, shape, strict=True):
                if want != got and not isinstance(want, str):
                    break
            else:
                return
        raise InvalidRequestError(
            f"unexpected shape for input '{self.name}': expected {list(self.wire_shape)}, "
            f"got {list(shape)}"
        )


def array_from_bytes(data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """View raw little-endian bytes as an array, without a copy; the array is read-only.

    Raises:
        InvalidRequestError: unknown datatype, negative dimension, or a wrong byte count.
    """
    dtype = NUMPY_FROM_DATATYPE.get(datatype)
    if dtype is None:
        known = ", ".join(NUMPY_FROM_DATATYPE)
        raise InvalidRequestError(f"datatype '{datatype}' is unknown; expected one of {known}")
    if any(dim < 0 for dim in shape):
        raise InvalidRequestError(f"shape {list(shape)} has a negative dimension")
    expected = math.prod(shape) * dtype.itemsize
    view = memoryview(data)
    if view.nbytes != expected:
        raise InvalidRequestError(
            f"expected {expected} bytes for {datatype} {list(shape)}, got {view.nbytes}"
        )
    # Read-only whatever the buffer is: it belongs to a message, not to the model.
    return np.frombuffer(view.toreadonly(), dtype=dtype).reshape(shape)


def bytes_from_array(array: Array) -> bytes:
    """The raw little-endian bytes of an array, row-major."""
    return np.ascontiguousarray(array).tobytes()
