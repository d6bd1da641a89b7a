"""Resize and Upsample: interpolation along each axis in turn.

Every output position maps to a coordinate of the input, by the formulas of ONNX,
in float64 as ONNX's reference does; then neighbours are picked and weighted.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from fractions import Fraction

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.signals.resize_filters import (
    emit_filter,
    kept_aspect_ratio,
)
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_max, sym_min
from compiler_worker.onnx_to_fx.values import Tensor


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis to resize: sizes before and after; scale where the graph gives it.

    `region` is the part of the axis to be resized, from 0 to 1, where the mode has one.
    """

    axis: int
    size: HostInt
    target: HostInt
    scale: float | None
    region: tuple[float, float] | None = None


@converter("Resize", versions=(10, 11, 13, 18, 19))
def resize(op: Op) -> Tensor:
    """Resize to given sizes or by given scales."""
    x = op.tensor(0)
    _check(op)
    for target in _targets(op, x):
        x = _resized(op, x, target)
    return x


@converter("Upsample", versions=(7, 9))
def upsample(op: Op) -> Tensor:
    """The older name of Resize by scales; raises UnsupportedGraphError for modes but nearest."""
    x = op.tensor(0)
    if op.attr_str("mode") != "nearest":
        raise op.refuse(f"mode '{op.attr_str('mode')}' is not translated")
    scales = op.floats(1) if op.version >= 9 else op.maybe_floats("scales") or []
    for target in _scaled(op, x, list(range(x.rank)), scales):
        x = _nearest(op, x, target, _divided(op, target), "floor")
    return x


def _check(op: Op) -> None:
    if op.version < 11:
        if op.attr_str("mode") != "nearest":
            raise op.refuse("before opset 11 only mode 'nearest' is translated")
        return
    mode = op.choice("mode", ("nearest", "linear", "cubic"))
    if mode != "nearest" and not op.value(0).dtype.is_floating_point:
        raise op.refuse("interpolation of integers is not translated")
    op.choice("coordinate_transformation_mode", _COORDINATES)
    if _is_antialiased(op) and mode == "nearest":
        raise op.refuse("antialias goes with modes linear and cubic")


def _is_antialiased(op: Op) -> bool:
    return op.version >= 18 and bool(op.attr_int("antialias"))


def _targets(op: Op, x: Tensor) -> list[_Axis]:
    axes = op.maybe_ints("axes") if op.version >= 18 else None
    axes = list(range(x.rank)) if axes is None else [op.axis(axis, x.rank) for axis in axes]
    if op.version < 11:
        return _scaled(op, x, axes, op.floats(1))
    if op.has(3):
        return _sized(op, x, axes)
    if op.attr_str("coordinate_transformation_mode") == "tf_crop_and_resize":
        # ONNX's words scale the region, its reference the whole input.
        raise op.refuse("tf_crop_and_resize by scales is not translated")
    return _scaled(op, x, axes, op.floats(2))


def _sized(op: Op, x: Tensor, axes: list[int]) -> list[_Axis]:
    before = [op.graph.dim(x, axis) for axis in axes]
    after = op.ints(3)
    policy = op.attr_str("keep_aspect_ratio_policy") if op.version >= 18 else "stretch"
    scale = None
    if policy != "stretch":
        scale, kept = kept_aspect_ratio(op, before, after, policy)
        after = [*kept]
    regions = _regions(op, len(axes))
    return [
        _Axis(axis, size, target, scale, region)
        for axis, size, target, region in zip(axes, before, after, regions, strict=True)
        if size != target or scale not in (None, 1.0) or region not in (None, (0.0, 1.0))
    ]


def _regions(op: Op, count: int) -> list[tuple[float, float] | None]:
    if op.attr_str("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [None] * count
    bounds = op.floats(1)
    if len(bounds) != 2 * count:
        raise op.refuse(f"roi has {len(bounds)} bounds for {count} axes")
    # ONNX lists the starts of all axes first, then the ends.
    return list(zip(bounds[:count], bounds[count:], strict=True))


def _scaled(op: Op, x: Tensor, axes: list[int], scales: list[float]) -> list[_Axis]:
    targets = []
    for axis, scale in zip(axes, scales, strict=True):
        if scale == 1.0:
            continue
        # The exact fraction of the float keeps floor(size * scale) in integers.
        exact = Fraction(scale)
        size = op.graph.dim(x, axis)
        targets.append(_Axis(axis, size, size * exact.numerator // exact.denominator, scale))
    return targets


def _resized(op: Op, x: Tensor, target: _Axis) -> Tensor:
    if op.version < 11:
        # Before opset 11 positions were divided by the scale and rounded down, whatever was asked.
        return _nearest(op, x, target, _divided(op, target), "floor")
    coordinates = _COORDINATES[op.attr_str("coordinate_transformation_mode")](op, target)
    mode = op.attr_str("mode")
    if mode == "nearest":
        result = _nearest(op, x, target, coordinates, op.attr_str("nearest_mode"))
    else:
        # A filter that is made no wider has the nearest two or four elements.
        scale = _static_scale(op, target) if _is_antialiased(op) else 1.0
        node = emit_filter(op, x, target.axis, coordinates, scale, is_cubic=mode == "cubic")
        result = x.resized(node, target.axis, target.target)
    return result if target.region is None else _extrapolated(op, result, target, coordinates)


def _static_scale(op: Op, target: _Axis) -> float:
    if target.scale is not None:
        return target.scale
    if isinstance(target.size, Sym) or isinstance(target.target, Sym):
        raise op.refuse("the reach of an antialias filter needs static sizes or scales")
    return target.target / target.size


def _extrapolated(op: Op, x: Tensor, target: _Axis, coordinates: torch.fx.Node) -> Tensor:
    """Put one value where a place lies outside of the input."""
    low = op.call(operator.lt, coordinates, 0)
    high = op.call(operator.gt, coordinates, target.size - 1)
    outside = op.call(
        torch.reshape, op.call(operator.or_, low, high), [-1] + [1] * (x.rank - target.axis - 1)
    )
    value = op.graph.number(op.attr_float("extrapolation_value"), x.dtype)
    return x.like(op.call(torch.where, outside, value, x))


def _steps(op: Op, target: _Axis) -> torch.fx.Node:
    device = op.graph.device()
    return op.call(torch.arange, target.target, dtype=torch.float64, device=device)


def _unscaled(op: Op, target: _Axis, position: torch.fx.Node) -> torch.fx.Node:
    """Divide positions by the scale, given or the ratio of the sizes."""
    if target.scale is not None:
        return op.call(operator.truediv, position, target.scale)
    return op.call(operator.truediv, op.call(operator.mul, position, target.size), target.target)


def _divided(op: Op, target: _Axis) -> torch.fx.Node:
    return _unscaled(op, target, _steps(op, target))


def _half_pixel(op: Op, target: _Axis) -> torch.fx.Node:
    centred = op.call(operator.add, _steps(op, target), 0.5)
    return op.call(operator.sub, _unscaled(op, target, centred), 0.5)


def _pytorch_half_pixel(op: Op, target: _Axis) -> torch.fx.Node:
    # A single output element takes coordinate 0: the factor is 0 for size 1, else 1.
    factor = sym_max(sym_min(target.target - 1, 1), 0)
    return op.call(operator.mul, _half_pixel(op, target), factor)


def _half_pixel_symmetric(op: Op, target: _Axis) -> torch.fx.Node:
    if target.scale is None:
        return _half_pixel(op, target)
    length = op.call(operator.mul, target.scale, target.size)
    adjustment = op.call(operator.truediv, target.target, length)
    half = op.call(operator.truediv, target.size, 2)
    offset = op.call(operator.mul, half, op.call(operator.sub, 1, adjustment))
    return op.call(operator.add, _half_pixel(op, target), offset)


def _align_corners(op: Op, target: _Axis) -> torch.fx.Node:
    last = target.size - 1
    target_last = sym_max(target.target - 1, 1)
    if target.scale is not None:
        # ONNX takes the unrounded length here, not the number of elements.
        length = op.call(operator.sub, op.call(operator.mul, target.scale, target.size), 1)
        # Where it is below 1 there is one element, at coordinate 0 whatever the step is.
        step = op.call(operator.truediv, last, op.call(torch.sym_max, length, 0.5))
        return op.call(operator.mul, _steps(op, target), step)
    whole = op.call(operator.mul, _steps(op, target), last)
    return op.call(operator.truediv, whole, target_last)


def _cropped(op: Op, target: _Axis) -> torch.fx.Node:
    start, end = target.region or (0.0, 1.0)
    if isinstance(target.target, Sym):
        raise op.refuse("tf_crop_and_resize needs a static size to resize to")
    last = target.size - 1
    steps = _steps(op, target)
    if target.target == 1:
        place = op.call(operator.add, steps, 0.5 * (start + end))
        return op.call(operator.mul, place, last)
    # In this order the region's end is hit exactly: beyond it lies another value.
    place = op.call(operator.mul, op.call(operator.mul, steps, end - start), last)
    place = op.call(operator.truediv, place, target.target - 1)
    offset = op.call(operator.mul, op.call(torch.full_like, steps, start), last)
    return op.call(operator.add, place, offset)


_COORDINATES = {
    "align_corners": _align_corners,
    "asymmetric": _divided,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "tf_crop_and_resize": _cropped,
}


def _nearest(op: Op, x: Tensor, target: _Axis, coordinates: torch.fx.Node, rounding: str) -> Tensor:
    match rounding:
        case "floor":
            node = op.call(torch.floor, coordinates)
        case "ceil":
            node = op.call(torch.ceil, coordinates)
        case "round_prefer_floor":
            node = op.call(torch.ceil, op.call(operator.sub, coordinates, 0.5))
        case "round_prefer_ceil":
            node = op.call(torch.floor, op.call(operator.add, coordinates, 0.5))
        case _:
            raise op.refuse(f"nearest_mode '{rounding}' is not translated")
    # Positions beyond an edge take the edge.
    index = op.call(torch.clamp, op.method("to", node, torch.int64), 0, target.size - 1)
    picked = op.call(torch.index_select, x, target.axis, index)
    return x.resized(picked, target.axis, target.target)
