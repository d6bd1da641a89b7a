"""Arrays of the master: from `TensorProto` to values, by reference."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler_worker.onnx_to_fx.dtypes import (
    numpy_dtype_from_torch,
    onnx_type_name,
    torch_dtype_from_onnx,
)
from compiler_worker.onnx_to_fx.values import Constant
from services.contracts.errors import UnsupportedGraphError


def constant_from_tensor(
    name: str, tensor: onnx.TensorProto, array: NDArray[np.generic] | None = None
) -> Constant:
    """Return an initializer's value over `array`, or over the tensor's own bytes.

    Args:
        name: of the initializer.
        tensor: declares type and dims.
        array: its values, kept by reference; None reads them from `tensor`.

    Raises:
        UnsupportedGraphError: the type is not translated, the data is missing, or
            `array` is not what the tensor declares.
    """
    dtype = torch_dtype_from_onnx(tensor.data_type)
    if dtype is None:
        wrong = onnx_type_name(tensor.data_type)
        raise UnsupportedGraphError(f"initializer '{name}' has type {wrong}, not translated")
    if array is None:
        array = _own_array(name, tensor)
    wanted = numpy_dtype_from_torch(dtype)
    if array.dtype != wanted or array.shape != tuple(tensor.dims):
        raise UnsupportedGraphError(
            f"initializer '{name}' is given as {array.dtype}{list(array.shape)}, "
            f"the graph declares {wanted}{list(tensor.dims)}"
        )
    return Constant(name, array, dtype)


def _own_array(name: str, tensor: onnx.TensorProto) -> NDArray[np.generic]:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise UnsupportedGraphError(
            f"initializer '{name}' has external data that is not loaded; call "
            "onnx.load_external_data_for_model, or pass the array in `weights`"
        )
    try:
        return onnx.numpy_helper.to_array(tensor)
    except ValueError as error:
        raise UnsupportedGraphError(
            f"initializer '{name}' has no complete data: {error}"
        ) from error
