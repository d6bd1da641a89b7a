"""The values of a tensor between JSON and its bytes."""

import asyncio
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
from services.gateway.http.answers import json_bytes

# What JSON makes of an answer is several times as large.
MAX_VALUES_BYTES: Final = 8 << 20
# Which are made at once.
_MOST_STRINGS: Final = 1 << 18
# Numbers take a microsecond each.
_VALUES_AT_ONCE: Final = 4096
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


async def json_from_bytes(raw: memoryview, datatype: str, shape: list[int]) -> list[bytes]:
    """An output's values in JSON, flat and row-major, to be joined; others have turns meanwhile.

    Args:
        raw: its bytes.
        datatype: KServe's name.
        shape: of the tensor.

    Raises:
        InvalidRequestError: they are too many for JSON.
        ValueError: a number is none of JSON.
    """
    if raw.nbytes > MAX_VALUES_BYTES or (datatype == BYTES and prod(shape) > _MOST_STRINGS):
        raise InvalidRequestError(
            f"an output has {raw.nbytes} bytes, at most {MAX_VALUES_BYTES} are sent as JSON, or "
            f"{_MOST_STRINGS} strings; ask for binary data"
        )
    array = array_from_bytes(raw, datatype, shape).ravel()
    if datatype == "BF16":
        array = array.astype(np.float32)
    parts = [b"["]
    for begin in range(0, array.size, _VALUES_AT_ONCE):
        if begin:
            await asyncio.sleep(0)
            parts.append(b",")
        parts.append(json_bytes(array[begin : begin + _VALUES_AT_ONCE].tolist())[1:-1])
    return [*parts, b"]"]
