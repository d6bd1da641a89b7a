"""Element types the importer translates, and their torch and numpy spellings.

Only types whose kernels exist in torch for ordinary arithmetic are listed; a
graph that holds another one (strings, complex, fp8, 4-bit, wide unsigned) is
refused by name at import.
"""

import math

import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray

_TORCH_FROM_ONNX: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.BOOL: torch.bool,
}

_NUMPY_FROM_TORCH: dict[torch.dtype, np.dtype[np.generic]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}


def torch_dtype_from_onnx(elem_type: int) -> torch.dtype | None:
    """Return the torch dtype of a `TensorProto.DataType`, None when not translated."""
    return _TORCH_FROM_ONNX.get(elem_type)


def onnx_type_name(elem_type: int) -> str:
    """Return the ONNX name of a `TensorProto.DataType`, for messages."""
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return names.get(elem_type, str(elem_type))


def numpy_dtype_from_torch(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return the numpy dtype of the same bits (bfloat16 through ml_dtypes)."""
    return _NUMPY_FROM_TORCH[dtype]


def tensor_sharing_memory(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a torch tensor over the array's own memory, read-only or not.

    Arrays over protobuf bytes or mapped files are read-only, and torch has no
    read-only tensors: it warns and shares all the same. A writable view of the
    same memory says so without the warning. Weights are never written: the
    graph has no in-place op on them.
    """
    source = np.ascontiguousarray(array)
    if source.dtype == ml_dtypes.bfloat16:
        return tensor_sharing_memory(source.view(np.int16)).view(torch.bfloat16)
    if not source.flags.writeable and source.size:
        source = np.asarray(_Writable(source))
    # ascontiguousarray makes a 0-d array 1-d, so the caller's shape is put back.
    return torch.from_numpy(source).reshape(array.shape)


def array_sharing_memory(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return a numpy array over a CPU tensor's own memory."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: NDArray[np.generic] = tensor.numpy()
    return array


class _Writable:
    """Offers an array's memory to numpy as writable, and keeps the array alive."""

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
