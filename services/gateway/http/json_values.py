"""The values of a tensor between JSON and its bytes."""

from itertools import chain
from math import isinf, prod
from typing import Any, Final

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import BYTES, check_num_strings
from services.contracts.kserve.tensors import (
    NUMPY_FROM_DATATYPE,
    array_from_bytes,
    bytes_from_array,
)

# What JSON makes of an answer is several times as large, and made while all others wait.
MAX_VALUES_BYTES: Final = 8 << 20
_TYPES: Final[dict[str, set[type]]] = {"b": {bool}, "u": {int}, "i": {int}, "O": {str}}
_NUMBERS: Final[set[type]] = {int, float}


def bytes_from_values(values: list[Any], datatype: str, shape: list[int]) -> bytes:
    """The bytes of a tensor whose values came as JSON.

    Args:
        values: in nested arrays or a flat one.
        datatype: KServe's name.
        shape: of the tensor.

    Raises:
        InvalidRequestError: another number of values than the shape has, or one that the datatype
            cannot hold.
    """
    dtype = NUMPY_FROM_DATATYPE.get(datatype)
    if dtype is None:
        known = ", ".join(NUMPY_FROM_DATATYPE)
        raise InvalidRequestError(f"datatype: expected one of {known}, got '{datatype}'")
    while values and type(values[0]) is list:
        if set(map(type, values)) != {list}:
            raise InvalidRequestError("data mixes arrays and values")
        values = list(chain.from_iterable(values))
    if len(values) != prod(shape):
        raise InvalidRequestError(
            f"data: expected {prod(shape)} values for shape {shape}, got {len(values)}"
        )
    if datatype == BYTES:
        check_num_strings("data", shape)
    # Before numpy sees them: it would make numbers of strings, and integers of fractions.
    wrong = set(map(type, values)) - _TYPES.get(dtype.kind, _NUMBERS)
    if wrong:
        names = ", ".join(sorted(each.__name__ for each in wrong))
        raise InvalidRequestError(f"data for {datatype} has values of type {names}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype=dtype)
        num_infinite = np.count_nonzero(np.isinf(array)) if dtype.kind not in "biuO" else 0
        if num_infinite and num_infinite > sum(map(isinf, values)):
            raise InvalidRequestError(f"data for {datatype} has numbers beyond its range")
        return bytes_from_array(array)
    except OverflowError as error:
        raise InvalidRequestError(f"data for {datatype}: {error}") from error


def values_from_bytes(raw: memoryview, datatype: str, shape: list[int]) -> list[Any]:
    """The values of an output, flat and row-major, as JSON has them.

    Args:
        raw: its bytes.
        datatype: KServe's name.
        shape: of the tensor.

    Raises:
        InvalidRequestError: they are too many for JSON.
    """
    if raw.nbytes > MAX_VALUES_BYTES:
        raise InvalidRequestError(
            f"an output has {raw.nbytes} bytes, at most {MAX_VALUES_BYTES} are sent as JSON; ask "
            "for binary data"
        )
    array = array_from_bytes(raw, datatype, shape).ravel()
    if datatype == "BF16":
        array = array.astype(np.float32)
    values: list[Any] = array.tolist()
    return values
