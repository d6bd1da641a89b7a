"""Values of inputs that are typed as JSON: strings, or numbers in the model's datatypes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array


def array_from_json(text: str) -> Array:
    """A JSON list of strings, or of numbers, as [N, ...]: integers as int64, others as float64.

    Raises:
        InvalidRequestError: it is no list, or of another content, or of lists of several lengths.
    """
    try:
        # As objects: numpy's text would end at the last character that is not 0.
        array: Array = np.array(json.loads(text), dtype=STRING_DTYPE)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"expected a JSON list of strings or numbers: {error}") from error
    kinds = {type(each) for each in array.ravel().tolist()}
    if array.ndim and kinds <= {str}:
        return array
    for dtype, allowed in ((np.bool_, {bool}), (np.int64, {int}), (np.float64, {int, float})):
        if array.ndim and kinds <= allowed:
            return _numbers(array, np.dtype(dtype))
    raise InvalidRequestError(
        "expected a JSON list of strings or of numbers, or of lists of equal length of them"
    )


def typed_arrays(
    arrays: dict[str, Array], names: Iterable[str], datatypes: Mapping[str, str]
) -> dict[str, Array]:
    """The arrays, those that were typed as numbers in the datatypes of a model's inputs.

    Args:
        arrays: by the name of an input, of any shape.
        names: of those that were typed.
        datatypes: of the model's inputs, as `INT64`; what has none here stays as it is.

    Raises:
        InvalidRequestError: a value does not fit the datatype.
    """
    dtypes = {name: NUMPY_FROM_DATATYPE.get(datatypes.get(name, "")) for name in names}
    typed = {name: _as(name, arrays[name], dtype) for name, dtype in dtypes.items()}
    return arrays | typed


def _numbers(array: Array, dtype: np.dtype[Any]) -> Array:
    try:
        return array.astype(dtype)
    except OverflowError as error:
        raise InvalidRequestError(f"{error}; larger integers come from .npy files") from error


def _as(name: str, array: Array, dtype: np.dtype[Any] | None) -> Array:
    if dtype is None or dtype == STRING_DTYPE or array.dtype == STRING_DTYPE:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = array.astype(dtype)
    is_whole = dtype.kind not in "iub" or np.array_equal(cast, array)
    if not is_whole or not np.array_equal(np.isinf(cast), np.isinf(array)):
        raise InvalidRequestError(f"--input {name}: the model takes {dtype}, these do not fit")
    return cast
