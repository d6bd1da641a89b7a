"""Convolutions, pools, resizes: what slides over pictures and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.faults.graphs.drawing import constant, is_16_bits, smallest, weight
from tests.faults.graphs.grower import DroppedError, Grower, Value


def require_fit(value: Value, kernel: Sequence[int], ways: dict[str, Any]) -> None:
    """Drop a window that is larger than what it slides over."""
    dims = len(kernel)
    strides = ways.get("strides", [1] * dims)
    if "SAME" in ways.get("auto_pad", "") and any(
        s > k for s, k in zip(strides, kernel, strict=True)
    ):
        raise DroppedError
    pads = ways.get("pads", [0] * 2 * dims)
    for i, size in enumerate(kernel):
        reach = (size - 1) * ways.get("dilations", [1] * dims)[i] + 1
        padded = smallest(value, 2 + i) + pads[i] + pads[dims + i]
        if padded < reach or not smallest(value, 2 + i):
            raise DroppedError


def _picture(g: Grower, op_type: str, least: int = 3) -> Value:
    return g.taken(op_type, lambda v: least <= v.rank <= 4)


def _window(g: Grower, dims: int, *, has_dilations: bool = True) -> dict[str, Any]:
    ways: dict[str, Any] = {}
    if g.chance(0.5):
        ways["strides"] = [g.int(1, 2) for _ in range(dims)]
    if has_dilations and g.chance(0.3):
        ways["dilations"] = [g.int(1, 2) for _ in range(dims)]
    if g.chance(0.3):
        ways["auto_pad"] = g.one(("SAME_UPPER", "SAME_LOWER", "VALID"))
        ways.pop("dilations", None)
    elif g.chance(0.6):
        ways["pads"] = [g.int(0, 1) for _ in range(2 * dims)]
    return ways


def convolution(g: Grower) -> None:
    value = _picture(g, "Conv")
    channels, dims = value.static(1), value.rank - 2
    if not channels:
        raise DroppedError
    groups = g.one([n for n in (1, 1, 2, channels) if channels % n == 0])
    kernel = [g.int(1, 3) for _ in range(dims)]
    outputs = groups * g.int(1, 2)
    given = [value, weight(g, [outputs, channels // groups, *kernel], value)]
    if g.chance(0.5):
        given.append(weight(g, [outputs], value))
    ways = _window(g, dims)
    require_fit(value, kernel, ways)
    g.add("Conv", given, exact=not is_16_bits(value), group=groups, **ways)


def transposed(g: Grower) -> None:
    value = _picture(g, "ConvTranspose")
    channels, dims = value.static(1), value.rank - 2
    if not channels:
        raise DroppedError
    kernel = [g.int(1, 3) for _ in range(dims)]
    ways = _window(g, dims)
    require_fit(value, [1] * dims, {})
    if "auto_pad" in ways:
        raise DroppedError
    if max(ways.get("strides", [1])) > 1 and g.chance(0.5):
        ways["output_padding"] = [n - 1 for n in ways["strides"]]
    given = [value, weight(g, [channels, g.int(1, 2), *kernel], value)]
    g.add("ConvTranspose", given, exact=not is_16_bits(value), **ways)


def pool(g: Grower) -> None:
    name = g.one(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    value = _picture(g, name)
    dims = value.rank - 2
    dilated = name == "MaxPool" or (name == "AveragePool" and g.opset >= 19)
    ways = _window(g, dims, has_dilations=dilated)
    ways["kernel_shape"] = [g.int(1, 3) for _ in range(dims)]
    # With pads the evaluator gives other sizes.
    if not {"auto_pad", "pads"} & ways.keys() and name != "LpPool":
        ways["ceil_mode"] = g.int(0, 1)
    if name == "AveragePool":
        ways["count_include_pad"] = g.int(0, 1)
    if "pads" in ways and min(ways["kernel_shape"]) < 2:
        del ways["pads"]
    if "pads" in ways and name == "MaxPool":
        # Where sides differ the evaluator gives other sizes.
        ways["pads"] = ways["pads"][:dims] * 2
    require_fit(value, ways["kernel_shape"], ways)
    has_places = name == "MaxPool" and g.chance(0.1) and "auto_pad" not in ways
    made = g.add(name, [value], outputs=1 + int(has_places), exact=name == "MaxPool", **ways)
    if has_places:
        # Of these the evaluator gives others: they are compared, and nothing is made of them.
        g.ends.append(made[1])
        g.values.remove(made[1])


def whole(g: Grower) -> None:
    name = g.one(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    # The evaluator takes an axis too many from rows.
    g.add(name, [_picture(g, name, least=4)], exact=name == "GlobalMaxPool")


def resize(g: Grower) -> None:
    # Of the others ONNX Runtime has none, and the evaluator is off where one element is left.
    types = (np.float32, np.int32, np.uint8, np.int8)
    value = g.taken("Resize", lambda v: 2 <= v.rank <= 4 and v.dtype in types)
    mode = g.one(("nearest", "nearest", "linear", "cubic"))
    scales = [g.one((1.0, 0.5, 2.0, 1.5)) if i > value.rank - 3 else 1.0 for i in range(value.rank)]
    if mode == "cubic" and value.rank != 4:
        raise DroppedError
    ways: dict[str, Any] = {"mode": mode}
    frames = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    ways["coordinate_transformation_mode"] = g.one(frames)
    if mode == "nearest":
        kinds = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        ways["nearest_mode"] = g.one(kinds)
    elif g.opset >= 18 and g.chance(0.3):
        ways["antialias"] = 1
    if g.chance(0.5):
        given = [value, None, g.constant(scales, np.float32)]
    else:
        rows = [
            [max(1, int(n * s)) for n, s in zip(shape, scales, strict=True)]
            for shape in value.shapes
        ]
        given = [value, None, None, g.ints(rows)]
    g.add("Resize", given, exact=mode == "nearest", **ways)


def batch_normalised(g: Grower) -> None:
    """A convolution and its normalisation: what a rewrite folds."""
    # See the one of its own in `sums.py`.
    known = g.opset >= 14
    value = g.taken("Conv", lambda v: v.rank in (3, 4) and v.dtype == np.float32 and known)
    kernel = [g.int(1, 2)] * (value.rank - 2)
    require_fit(value, kernel, {})
    (made,) = g.add("Conv", [value, weight(g, [4, value.static(1), *kernel], value)])
    given = [constant(g, (4,), np.float32) for _ in range(3)]
    spread = g.constant(g.rng.integers(1, 9, 4) / 4, np.float32)
    (made,) = g.add("BatchNormalization", [made, *given, spread], exact=False)
    if g.chance(0.5):
        g.add("Relu", [made])


FAMILY = (
    convolution,
    convolution,
    transposed,
    pool,
    pool,
    pool,
    whole,
    resize,
    resize,
    batch_normalised,
)
