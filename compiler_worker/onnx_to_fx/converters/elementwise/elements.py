"""Values of carried element types: numbers that torch computes with, and back.

Nothing here leaves a rounding to torch's own casts to small floats: their kernels differ in
what they do with numbers out of range. Elements are rounded to the type's grid first, in
arithmetic that is exact, and what is cast then is a value that the type holds.
"""

import numpy as np
import torch

from compiler_worker.onnx_to_fx.dtypes import (
    CARRIED,
    FLOAT4,
    FLOAT8,
    NARROW_INTS,
    SCALE8,
    carrier,
    num_bits,
)
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Constant, Tensor

_FLOAT4_VALUES = Constant(
    "float4_values",
    np.array([s * v for s in (1.0, -1.0) for v in (0.0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32),
    torch.float32,
)
# Halfway between neighbours; a tie goes to the even code, so it belongs to the upper one
# where that is even.
_FLOAT4_BOUNDS = (
    (torch.gt, 0.25),
    (torch.ge, 0.75),
    (torch.gt, 1.25),
    (torch.ge, 1.75),
    (torch.gt, 2.5),
    (torch.ge, 3.5),
    (torch.gt, 5.0),
)
# Bits of the fraction, and the exponent of the least normal number.
_FLOAT8_GRIDS = {
    torch.float8_e4m3fn: (3, -6),
    torch.float8_e4m3fnuz: (3, -7),
    torch.float8_e5m2: (2, -14),
    torch.float8_e5m2fnuz: (2, -15),
}
# How a float is laid out: its integers, bits of the fraction, bias of the exponent.
_LAYOUTS = {torch.float32: (torch.int32, 23, 127), torch.float64: (torch.int64, 52, 1023)}


def numbers(op: Op, x: Tensor) -> torch.fx.Node:
    """Return the elements as a type that torch computes in; nothing is rounded.

    Only the order and the sign of UINT64 elements of 2^63 and more are not theirs.
    """
    if x.dtype in FLOAT8 or x.dtype == SCALE8:
        return op.method("to", op.method("view", x, x.dtype), torch.float32)
    if x.dtype == FLOAT4:
        index = op.method("to", x, torch.int64)
        return op.call(torch.take, op.graph.tensor(_FLOAT4_VALUES), index)
    return x.node


def emit_cast(
    op: Op, x: Tensor, target: torch.dtype, *, saturate: bool = True, round_mode: str = "up"
) -> Tensor:
    """Change the element type as ONNX's Cast does.

    Args:
        op: the node.
        x: of any element type that is translated.
        target: element type of the result.
        saturate: for 8-bit floats: largest finite number for what is beyond it, else NaN or
            infinity.
        round_mode: for FLOAT8E8M0: `up`, `down` or `nearest`.
    """
    if x.dtype == target:
        return x
    if x.dtype == torch.uint64 and target.is_floating_point:
        node = op.method("view", x, torch.uint64)
    else:
        node = numbers(op, x)
    if target not in CARRIED:
        return x.like(op.method("to", node, op.graph.dtype(target)), dtype=target)
    if not target.is_floating_point:
        return x.like(_integers(op, node, x.dtype, target), dtype=target)
    # The master's float32 may run as another type; what is stored is what float32 stores.
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    node = op.method("to", node, wide)
    if target == FLOAT4:
        return x.like(_float4(op, node), dtype=target)
    if target == SCALE8:
        return x.like(_power_of_two(op, node, wide, saturate, round_mode), dtype=target)
    return x.like(_float8(op, node, wide, target, saturate), dtype=target)


def _integers(
    op: Op, node: torch.fx.Node, source: torch.dtype, target: torch.dtype
) -> torch.fx.Node:
    """Upper bits beyond the width of the target are dropped."""
    if target == torch.uint64:
        if source.is_floating_point:
            return op.method("view", op.method("to", node, torch.uint64), torch.int64)
        return op.method("to", node, torch.int64)
    if target not in NARROW_INTS:
        return wrapped(op, op.method("to", node, carrier(target)), target)
    whole = op.method("to", node, torch.int32)
    return op.method("to", wrapped(op, whole, target), carrier(target))


def wrapped(op: Op, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    """Return an integer modulo the range of an unsigned or narrow element type.

    Args:
        op: the node.
        node: integers of a wider type, unchecked.
        dtype: element type whose range counts; others are returned unchanged.
    """
    if dtype not in CARRIED or dtype == torch.uint64:
        return node
    bits = num_bits(dtype)
    low = op.call(torch.bitwise_and, node, (1 << bits) - 1)
    if not dtype.is_signed:
        return low
    sign = 1 << bits - 1
    return op.call(torch.sub, op.call(torch.bitwise_xor, low, sign), sign)


def _float4(op: Op, node: torch.fx.Node) -> torch.fx.Node:
    size = op.call(torch.abs, node)
    # The sign of a zero is kept too: the code has a bit of its own for it.
    code = op.method("to", op.call(torch.signbit, node), torch.uint8)
    code = op.call(torch.mul, code, 8)
    for is_past, bound in _FLOAT4_BOUNDS:
        code = op.call(torch.add, code, op.call(is_past, size, bound))
    return code


def _float8(
    op: Op, node: torch.fx.Node, wide: torch.dtype, target: torch.dtype, saturate: bool
) -> torch.fx.Node:
    rounded = _on_grid(op, node, wide, *_FLOAT8_GRIDS[target])
    largest = torch.finfo(target).max
    if saturate:
        inside = op.call(torch.clamp, rounded, -largest, largest)
    else:
        past = float("inf") if target == torch.float8_e5m2 else float("nan")
        inside = op.call(torch.where, op.call(torch.gt, rounded, largest), past, rounded)
        inside = op.call(torch.where, op.call(torch.lt, rounded, -largest), -past, inside)
    return op.method("view", op.method("to", inside, target), torch.uint8)


def _on_grid(
    op: Op, node: torch.fx.Node, wide: torch.dtype, fraction: int, least: int
) -> torch.fx.Node:
    """Round to the nearest number of `fraction` fraction bits, ties to even.

    The step at each element is a power of two made of its own exponent bits, so that
    dividing by it, rounding and multiplying are all exact.
    """
    whole, bits, bias = _LAYOUTS[wide]
    raw = op.call(torch.bitwise_right_shift, op.method("view", node, whole), bits)
    exponent = op.call(torch.bitwise_and, raw, 2 * bias + 1)
    exponent = op.call(torch.clamp, exponent, min=bias + least)
    step = op.call(torch.sub, exponent, fraction)
    inverse = op.call(torch.rsub, step, 2 * bias)
    step, inverse = (
        op.method("view", op.call(torch.bitwise_left_shift, power, bits), wide)
        for power in (step, inverse)
    )
    return op.call(torch.mul, op.call(torch.round, op.call(torch.mul, node, inverse)), step)


def _power_of_two(
    op: Op, node: torch.fx.Node, wide: torch.dtype, saturate: bool, round_mode: str
) -> torch.fx.Node:
    """Return the biased exponent of the neighbouring power of two; 255 stands for NaN."""
    if not saturate:
        raise op.refuse("FLOAT8E8M0 without saturation is not translated")
    if round_mode not in ("up", "down", "nearest"):
        raise op.refuse(f"round_mode '{round_mode}' is not one of ONNX's")
    node = op.method("to", node, torch.float32) if wide == torch.float64 else node
    raw = op.method("view", node, torch.int32)
    exponent = op.call(torch.bitwise_and, op.call(torch.bitwise_right_shift, raw, 23), 255)
    if round_mode != "down":
        fraction = op.call(torch.bitwise_and, raw, (1 << 23) - 1)
        # The least normal float32 is the second power of two: the first one, 2^-127, is
        # the middle of the subnormal numbers.
        half = 1 << 22
        bounds = (1, half + 1) if round_mode == "up" else (half, half + half // 2)
        is_subnormal = op.call(torch.eq, exponent, 0)
        bound = op.call(torch.where, is_subnormal, bounds[1], bounds[0])
        exponent = op.call(torch.add, exponent, op.call(torch.ge, fraction, bound))
    code = op.call(torch.clamp, exponent, max=254)
    code = op.call(torch.where, op.call(torch.isnan, node), 255, code)
    return op.method("to", code, torch.uint8)
