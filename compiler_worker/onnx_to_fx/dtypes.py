"""Element types the importer translates, in torch and numpy; what holds them is of any shape.

torch computes in most of them. For the others it has few kernels or none, so inside the
graph they are *carried* by a type that holds the same elements exactly:

| element type | carried as | at the graph's inputs and outputs |
|---|---|---|
| UINT16, UINT32 | their values in int32, int64 | torch.uint16, torch.uint32 |
| UINT64 | its bits in int64 | torch.uint64 |
| FLOAT8* | its bits in uint8 | torch.float8_* |
| INT4, INT2 / UINT4, UINT2 | one value per int8 / uint8 | the same |
| FLOAT4E2M1 | its bits in the low half of a uint8 | the same |

The torch dtype is the name of the element type all the same; `carrier` says what runs. A
graph that holds any other type (strings, complex, 6-bit floats) is refused by name.
"""

import math

import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray

_Proto = onnx.TensorProto


def _named(name: str) -> torch.dtype:
    # torch's own stubs do not list its types below 8 bits.
    dtype: torch.dtype = getattr(torch, name)
    return dtype


INT4, UINT4, INT2, UINT2 = map(_named, ("int4", "uint4", "int2", "uint2"))

# What torch calls an element type, and the numpy dtype that ONNX reads it as.
_SPELLINGS: dict[int, tuple[torch.dtype, type]] = {
    _Proto.FLOAT: (torch.float32, np.float32),
    _Proto.DOUBLE: (torch.float64, np.float64),
    _Proto.FLOAT16: (torch.float16, np.float16),
    _Proto.BFLOAT16: (torch.bfloat16, ml_dtypes.bfloat16),
    _Proto.INT8: (torch.int8, np.int8),
    _Proto.INT16: (torch.int16, np.int16),
    _Proto.INT32: (torch.int32, np.int32),
    _Proto.INT64: (torch.int64, np.int64),
    _Proto.UINT8: (torch.uint8, np.uint8),
    _Proto.BOOL: (torch.bool, np.bool_),
    _Proto.UINT16: (torch.uint16, np.uint16),
    _Proto.UINT32: (torch.uint32, np.uint32),
    _Proto.UINT64: (torch.uint64, np.uint64),
    _Proto.INT4: (INT4, ml_dtypes.int4),
    _Proto.UINT4: (UINT4, ml_dtypes.uint4),
    _Proto.INT2: (INT2, ml_dtypes.int2),
    _Proto.UINT2: (UINT2, ml_dtypes.uint2),
    _Proto.FLOAT8E4M3FN: (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    _Proto.FLOAT8E4M3FNUZ: (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    _Proto.FLOAT8E5M2: (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    _Proto.FLOAT8E5M2FNUZ: (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
    _Proto.FLOAT8E8M0: (torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu),
    # torch's own type holds two elements in a byte; here it only names the element type.
    _Proto.FLOAT4E2M1: (torch.float4_e2m1fn_x2, ml_dtypes.float4_e2m1fn),
}
_TORCH_FROM_ONNX = {elem_type: dtype for elem_type, (dtype, _) in _SPELLINGS.items()}
_ONNX_FROM_TORCH = {dtype: elem_type for elem_type, dtype in _TORCH_FROM_ONNX.items()}
_NUMPY_FROM_TORCH: dict[torch.dtype, np.dtype[np.generic]] = {
    dtype: np.dtype(scalar) for dtype, scalar in _SPELLINGS.values()
}

FLOAT8 = frozenset(
    {
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
    }
)
# Unsigned integers whose carrier holds their values: order and sums need nothing special.
UNSIGNED_VALUES = frozenset({torch.uint16, torch.uint32})
WIDE_UNSIGNED = UNSIGNED_VALUES | {torch.uint64}
_BITS_OF_NARROW = {INT4: 4, UINT4: 4, INT2: 2, UINT2: 2}
NARROW_INTS = frozenset(_BITS_OF_NARROW)
FLOAT4 = torch.float4_e2m1fn_x2
SCALE8 = torch.float8_e8m0fnu

_CARRIER: dict[torch.dtype, torch.dtype] = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    **dict.fromkeys(FLOAT8, torch.uint8),
    SCALE8: torch.uint8,
    FLOAT4: torch.uint8,
    **{dtype: torch.int8 if dtype.is_signed else torch.uint8 for dtype in NARROW_INTS},
}
CARRIED = frozenset(_CARRIER)


def torch_dtype_from_onnx(elem_type: int) -> torch.dtype | None:
    """Return the torch dtype of a `TensorProto.DataType`, None when not translated."""
    return _TORCH_FROM_ONNX.get(elem_type)


def onnx_type_from_torch(dtype: torch.dtype) -> int:
    """Return the `TensorProto.DataType` of an element type."""
    return _ONNX_FROM_TORCH[dtype]


def onnx_type_name(elem_type: int) -> str:
    """Return the ONNX name of a `TensorProto.DataType`, for messages."""
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return names.get(elem_type, str(elem_type))


def element_type_name(dtype: torch.dtype) -> str:
    """Return the ONNX name of an element type."""
    return onnx_type_name(_ONNX_FROM_TORCH[dtype])


def numpy_dtype_from_torch(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return the numpy dtype that ONNX reads the element type as (through ml_dtypes)."""
    return _NUMPY_FROM_TORCH[dtype]


def carrier(dtype: torch.dtype) -> torch.dtype:
    """Return what tensors of an element type are inside the graph."""
    return _CARRIER.get(dtype, dtype)


def interface(dtype: torch.dtype) -> torch.dtype:
    """Return what tensors of an element type are at the graph's inputs and outputs."""
    return dtype if dtype in WIDE_UNSIGNED or dtype in FLOAT8 | {SCALE8} else carrier(dtype)


def num_bits(dtype: torch.dtype) -> int:
    """Return the bits of one element."""
    return 4 if dtype == FLOAT4 else _BITS_OF_NARROW.get(dtype, dtype.itemsize * 8)


def integer_range(dtype: torch.dtype) -> tuple[int, int]:
    """Return the least and the largest value of an integer element type."""
    bits = num_bits(dtype)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


def carried_tensor(array: NDArray[np.generic], dtype: torch.dtype) -> torch.Tensor:
    """Return an array of the master as the graph holds it, of its shape; no copy where it can."""
    data = tensor_sharing_memory(array)
    match dtype:
        case torch.uint16 | torch.uint32:
            return data.to(carrier(dtype))
        case torch.uint64:
            return data.view(torch.int64)
        case _ if dtype in FLOAT8 or dtype == SCALE8:
            return data.view(torch.uint8)
        case _:
            return data


def tensor_sharing_memory(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a torch tensor of an array's shape over its own memory, read-only or not.

    Arrays over protobuf bytes or mapped files are read-only, and torch has no
    read-only tensors: it warns and shares all the same. A writable view of the
    same memory says so without the warning. Weights are never written: the
    graph has no in-place op on them. Types below 8 bits, of which numpy leaves the
    upper bits open, are copied.
    """
    dtype = next((torch_type for torch_type, kind in _FOREIGN if array.dtype == kind), None)
    if dtype == FLOAT4:
        return torch.from_numpy(np.asarray(array.view(np.uint8) & np.uint8(15)))
    if dtype is not None and dtype in NARROW_INTS:
        return torch.from_numpy(array.astype(np.int8 if dtype.is_signed else np.uint8))
    source = np.ascontiguousarray(array)
    if dtype is not None:
        bits = source.view(np.int16 if source.itemsize == 2 else np.uint8)
        return tensor_sharing_memory(bits).view(dtype).reshape(array.shape)
    if not source.flags.writeable:
        # An empty array has no memory to point at.
        source = np.asarray(_Writable(source)) if source.size else source.copy()
    # ascontiguousarray makes a 0-d array 1-d, so the caller's shape is put back.
    return torch.from_numpy(source).reshape(array.shape)


# Types that numpy has through ml_dtypes only; torch does not take such arrays.
_FOREIGN = [
    (dtype, kind)
    for dtype, kind in _NUMPY_FROM_TORCH.items()
    if kind.type.__module__.startswith("ml_dtypes")
]


def array_sharing_memory(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return a numpy array of a CPU tensor's shape over its own memory."""
    kind = _NUMPY_FROM_TORCH[tensor.dtype]
    if kind in [foreign for _, foreign in _FOREIGN]:
        bits = torch.int16 if tensor.itemsize == 2 else torch.uint8
        return tensor.view(bits).numpy().view(kind)
    array: NDArray[np.generic] = tensor.numpy()
    return array


class _Writable:
    """Offers an array's memory to numpy as writable, and holds the array."""

    def __init__(self, array: NDArray[np.generic]) -> None:
        self._array = array
        pointer, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def saturated(value: float, dtype: torch.dtype) -> float:
    """Bring a finite number into the range of a float dtype; infinities stay.

    A float32 mask constant such as -3.4e38 would become -inf in float16 and turn a
    fully masked softmax row into NaN.
    """
    if not dtype.is_floating_point or not math.isfinite(value):
        return value
    limits = torch.finfo(dtype)
    return min(max(value, limits.min), limits.max)
