"""Typed tensor contents (`InferTensorContents`) to arrays."""

import math
from typing import TYPE_CHECKING

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import BYTES, strings_from_elements
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array

if TYPE_CHECKING:
    from services.pb import open_inference_v2_pb2 as pb

# FP16 and BF16 have no field: the protocol carries them as raw contents only.
_FIELD_FROM_DATATYPE = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def array_from_contents(tensor: "pb.ModelInferRequest.InferInputTensor", model: str) -> Array:
    """The array, of any shape, of a tensor that carries typed contents.

    Raises:
        InvalidRequestError: no field for the datatype, data in another field, a negative
            dimension, a wrong number of elements, or one that the datatype cannot hold.
    """
    where = f"input '{tensor.name}' for model '{model}'"
    field = _FIELD_FROM_DATATYPE.get(tensor.datatype)
    if field is None:
        raise InvalidRequestError(
            f"{where}: {tensor.datatype} has no typed contents; use raw_input_contents"
        )
    filled = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    if filled not in ([], [field]):
        raise InvalidRequestError(
            f"{where}: expected {tensor.datatype} data in {field}, got {', '.join(filled)}"
        )
    if any(dim < 0 for dim in tensor.shape):
        raise InvalidRequestError(f"{where}: shape {list(tensor.shape)} has a negative dimension")
    values = getattr(tensor.contents, field)
    expected = math.prod(tensor.shape)
    if len(values) != expected:
        raise InvalidRequestError(
            f"{where}: expected {expected} elements for shape {list(tensor.shape)}, "
            f"got {len(values)}"
        )
    if tensor.datatype == BYTES:
        try:
            return strings_from_elements(values, tensor.shape)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{where}: {error}") from error
    return _exact_array(values, tensor.datatype, where).reshape(tensor.shape)


def _exact_array(values: list[int] | list[float], datatype: str, where: str) -> Array:
    try:
        return np.array(values, dtype=NUMPY_FROM_DATATYPE[datatype])
    except OverflowError as error:
        raise InvalidRequestError(f"{where}: a value is out of range for {datatype}") from error
