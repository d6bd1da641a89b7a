"""Arrays and partners that fit: what families of ops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from services.contracts.kserve.tensors import Array
from tests.faults.graphs.grower import DroppedError, Grower, Value

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTS = (np.int64, np.int32, np.int8, np.int16, np.uint8, np.uint16, np.uint32, np.uint64)
# Types that an opset brought, by what numpy calls them.
NEWER = {
    19: ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    21: ("int4", "uint4"),
    23: ("float4_e2m1fn",),
    25: ("int2", "uint2"),
}


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    """Small numbers of a type, floats in quarters."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(tuple(shape)) < 0.5
    if "int" in dtype.name:
        low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
        return rng.integers(max(low, -6), min(high, 9), tuple(shape), endpoint=True).astype(dtype)
    return (rng.integers(-12, 12, tuple(shape), endpoint=True) / 4).astype(dtype)


def newer_types(opset: int) -> list[Any]:
    return [np.dtype(getattr(ml_dtypes, n)) for v, row in NEWER.items() if v <= opset for n in row]


def proto_type(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def constant(g: Grower, shape: Sequence[int], dtype: Any) -> Value:
    return g.constant(drawn(g.rng, shape, dtype))


def weight(g: Grower, shape: Sequence[int | None], like: Value) -> Value:
    """A constant of a value's type; dropped where a size is not static."""
    if any(size is None for size in shape):
        raise DroppedError
    return constant(g, [size for size in shape if size is not None], like.dtype)


def ones(g: Grower, shape: Sequence[int | None], like: Value) -> Value:
    """A constant above zero: variances, slopes."""
    made = weight(g, shape, like)
    g.constants.remove(made)
    return g.constant((np.abs(made.arrays[0].astype(np.float64)) + 0.25).astype(like.dtype))


def partner(g: Grower, value: Value, dtype: Any = None) -> Value:
    """A value that broadcasts with another one: of the graph, or a constant."""
    dtype = value.dtype if dtype is None else dtype
    found = [v for v in g.values if v is not value and v.dtype == dtype and broadcasts(v, value)]
    if found and g.chance(0.6):
        return g.one(found)
    sizes = [value.static(axis) for axis in range(value.rank)]
    shape = [1 if size is None or g.chance(0.3) else size for size in sizes]
    return constant(g, shape[g.int(0, len(shape)) :], dtype)


def broadcasts(left: Value, right: Value) -> bool:
    try:
        for one, other in zip(left.shapes, right.shapes, strict=True):
            np.broadcast_shapes(one, other)
    except ValueError:
        return False
    return True


def axis_of(g: Grower, value: Value) -> int:
    """An axis counted from the front or from the end."""
    if not value.rank:
        raise DroppedError
    return g.int(-value.rank, value.rank - 1)


def smallest(value: Value, axis: int) -> int:
    return min(value.sizes(axis))


def holds(value: Value, low: float, high: float) -> bool:
    """Whether all elements lie between; false for NaN."""
    return all(
        bool(np.all((a.astype(np.float64) >= low) & (a.astype(np.float64) <= high)))
        for a in value.arrays
    )


def is_16_bits(value: Value) -> bool:
    return value.type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
