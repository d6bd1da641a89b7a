"""Arrays of the master: from `TensorProto` to values, by reference."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler_worker.onnx_to_fx.dtypes import (
    onnx_type_name,
    torch_dtype_from_onnx,
)
from compiler_worker.onnx_to_fx.values import Constant
from services.contracts.errors import UnsupportedGraphError


def constant_from_tensor(name: str, tensor: onnx.TensorProto) -> Constant:
    """Return an initializer's value over the tensor's own bytes.

    Raises UnsupportedGraphError: the type is not translated, or data is missing.
    """
    dtype = torch_dtype_from_onnx(tensor.data_type)
    if dtype is None:
        wrong = onnx_type_name(tensor.data_type)
        raise UnsupportedGraphError(f"initializer '{name}' has type {wrong}, not translated")
    return Constant(name, _own_array(name, tensor), dtype)


def _own_array(name: str, tensor: onnx.TensorProto) -> NDArray[np.generic]:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise UnsupportedGraphError(
            f"initializer '{name}' has external data that is not loaded; call "
            "onnx.load_external_data_for_model"
        )
    try:
        return onnx.numpy_helper.to_array(tensor)
    except ValueError as error:
        raise UnsupportedGraphError(
            f"initializer '{name}' has no complete data: {error}"
        ) from error
