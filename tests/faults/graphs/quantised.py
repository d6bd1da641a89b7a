"""Quantisation: rounding to bytes, products of bytes, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.faults.graphs.drawing import constant, holds, partner, weight
from tests.faults.graphs.grower import DroppedError, Grower, Value
from tests.faults.graphs.windows import require_fit

_BYTES = (np.uint8, np.int8)


def _types(g: Grower) -> list[Any]:
    newer = [np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4] * (g.opset >= 21)
    return [*_BYTES, *_BYTES, *newer, *[ml_dtypes.float8_e4m3fn] * (g.opset >= 19)]


def _scale(g: Grower, shape: tuple[int, ...], dtype: Any = np.float32) -> Value:
    """Powers of two: what they divide is not rounded."""
    return g.constant(2.0 ** g.rng.integers(-3, 2, shape), dtype)


def _zero(g: Grower, shape: tuple[int, ...], dtype: Any) -> Value:
    if "float" in np.dtype(dtype).name:
        return g.constant(np.zeros(shape), dtype)
    return constant(g, shape, dtype)


def quantised(g: Grower) -> None:
    value = g.taken("QuantizeLinear", lambda v: v.is_exact and v.is_float)
    dtype = g.one(_types(g))
    shape, ways = _scale_shape(g, value)
    zero = [_zero(g, shape, dtype)] if g.chance(0.8) else []
    scale = _scale(g, shape, value.dtype if g.opset >= 19 else np.float32)
    (made,) = g.add("QuantizeLinear", [value, scale, *zero], **ways)
    if g.chance(0.6):
        g.add("DequantizeLinear", [made, scale, *zero], **ways)


def _scale_shape(g: Grower, value: Value) -> tuple[tuple[int, ...], dict[str, int]]:
    """One scale for all, or one for each place of an axis."""
    if not value.rank or g.chance(0.6):
        return (), {}
    axis = g.int(0, value.rank - 1)
    size = value.static(axis)
    if not size:
        raise DroppedError
    return (size,), {"axis": axis - value.rank * g.int(0, 1)}


def dequantised(g: Grower) -> None:
    value = g.taken("DequantizeLinear", lambda v: v.is_exact)
    shape, ways = _scale_shape(g, value)
    zero = [_zero(g, shape, value.dtype)] if g.chance(0.7) and value.dtype != np.int32 else []
    g.add("DequantizeLinear", [value, _scale(g, shape), *zero], **ways)


def measured(g: Grower) -> None:
    """Scales of the call's own values."""
    value = g.pick(lambda v: v.dtype == np.float32 and v.is_exact)
    g.add("DynamicQuantizeLinear", [value], outputs=3, exact=False)


def products(g: Grower) -> None:
    left = g.pick(lambda v: v.dtype in _BYTES and v.rank > 1 and v.is_exact)
    right = weight(g, [left.static(left.rank - 1), g.int(1, 4)], left)
    zeros = [_zero(g, (), left.dtype) for _ in range(2)]
    if g.chance(0.5):
        g.add("MatMulInteger", [left, right, *zeros[: g.int(0, 2)]])
        return
    scales = [_scale(g, ()) for _ in range(3)]
    last = [scales[2], _zero(g, (), left.dtype)]
    g.add("QLinearMatMul", [left, scales[0], zeros[0], right, scales[1], zeros[1], *last])


def convolutions(g: Grower) -> None:
    value = g.pick(lambda v: v.dtype in _BYTES and v.rank in (3, 4) and v.is_exact)
    kernel = weight(g, [2, value.static(1), *[g.int(1, 2)] * (value.rank - 2)], value)
    zeros = [_zero(g, (), value.dtype) for _ in range(2)]
    ways = {"pads": [1] * (2 * value.rank - 4)} if g.chance(0.4) else {}
    require_fit(value, kernel.shapes[0][2:], ways)
    if g.chance(0.5):
        g.add("ConvInteger", [value, kernel, *zeros[: g.int(0, 2)]], **ways)
        return
    scales = [_scale(g, ()) for _ in range(3)]
    last = [scales[2], _zero(g, (), value.dtype)]
    g.add("QLinearConv", [value, scales[0], zeros[0], kernel, scales[1], zeros[1], *last], **ways)


def surrounded(g: Grower) -> None:
    """A product in floats between roundings to bytes, as quantisers write it."""
    value = g.pick(lambda v: v.dtype == np.float32 and v.is_exact and v.rank > 1)
    scale, zero = _scale(g, ()), constant(g, (), g.one(_BYTES))
    (rounded,) = g.add("QuantizeLinear", [value, scale, zero])
    (back,) = g.add("DequantizeLinear", [rounded, scale, zero])
    kernel = constant(g, (value.static(value.rank - 1) or 0, 3), np.int8)
    (kernel,) = g.add("DequantizeLinear", [kernel, _scale(g, (3,))], axis=1)
    (made,) = g.add("MatMul", [back, kernel])
    if g.chance(0.5):
        (made,) = g.add("Add", [made, partner(g, made)])
    if made.is_exact and holds(made, -1e3, 1e3):
        g.add("QuantizeLinear", [made, _scale(g, ()), constant(g, (), np.int8)])


FAMILY = (
    quantised,
    quantised,
    quantised,
    dequantised,
    measured,
    products,
    convolutions,
    surrounded,
)
