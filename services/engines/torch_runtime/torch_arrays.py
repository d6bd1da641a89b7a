"""Between numpy arrays and torch tensors of any shape, which is kept; bfloat16 included."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class _ReadOnlyMemory:
    """Offers a read-only array's memory to torch, and keeps the array alive.

    Requests are views of received bytes. torch has no read-only tensors: it would warn once
    and share the memory all the same. Engines never write to their inputs.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        pointer, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def tensor_from_array(array: Array) -> torch.Tensor:
    """A CPU tensor over the array's memory, without a copy; not to be written to."""
    # torch does not know numpy's bfloat16, which is of ml_dtypes: bits pass as int16.
    if array.dtype == _BFLOAT16:
        return tensor_from_array(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable:
        array = np.asarray(_ReadOnlyMemory(array)) if array.size else array.copy()
    return torch.from_numpy(array)


def array_over(tensor: torch.Tensor) -> Array:
    """An array over a CPU tensor's memory, without a copy."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


def array_from_tensor(tensor: torch.Tensor) -> Array:
    """An array that owns a copy of the tensor's values, wherever the tensor lies."""
    # Copied on a CPU too: it may be a buffer that the next run writes.
    return array_over(tensor.detach().cpu().contiguous()).copy()


def torch_dtype(datatype: str) -> torch.dtype:
    """The torch dtype of a KServe v2 datatype."""
    dtype = NUMPY_FROM_DATATYPE[datatype]
    # By way of numpy, so that there is one table of datatypes.
    empty: np.ndarray[Any, Any] = np.empty(0, dtype)
    return tensor_from_array(empty).dtype
