"""Numbers as small integers or floats times a scale, and back."""

import operator

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.casting import dtype_from_attribute
from compiler_worker.onnx_to_fx.converters.elementwise.elements import emit_cast, numbers
from compiler_worker.onnx_to_fx.dtypes import (
    CARRIED,
    FLOAT4,
    FLOAT8,
    SCALE8,
    carrier,
    element_type_name,
    integer_range,
    num_bits,
)
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import Sym
from compiler_worker.onnx_to_fx.values import Constant, Tensor

# More than any quantized type and its zero point need; exact in float32 and in int32.
_FAR = float(1 << 20)
_VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)


@converter("QuantizeLinear", versions=_VERSIONS, carried=CARRIED)
def quantize_linear(op: Op) -> Tensor:
    """Divide by the scale, round to even, add the zero point, saturate."""
    x = op.tensor(0)
    target = _quantized_type(op)
    precision = _division_type(op)
    scale = spread(op, emit_cast(op, op.tensor(1), precision), x)
    divided = op.call(operator.truediv, emit_cast(op, x, precision), scale)
    if target.is_floating_point:
        _check_no_zero_point(op)
        saturate = op.version < 19 or bool(op.attr_int("saturate"))
        return emit_cast(op, Tensor(divided, precision, x.dims), target, saturate=saturate)
    offset = None
    if op.has(2):
        offset = spread(op, op.tensor(2), x)
    return Tensor(emit_rounded(op, divided, offset, target), target, x.dims)


def emit_rounded(
    op: Op, divided: torch.fx.Node, offset: torch.fx.Node | None, target: torch.dtype
) -> torch.fx.Node:
    """Round to even, add a zero point and saturate, all exactly.

    Args:
        op: the node.
        divided: values over their scale, of a float type.
        offset: the zero point, an integer; None is 0.
        target: integer type of up to 16 bits.
    """
    # 16-bit floats cannot hold every sum, so the integers are added as integers.
    rounded = op.method("to", op.call(torch.round, divided), torch.float32)
    whole = op.method("to", op.call(torch.clamp, rounded, -_FAR, _FAR), torch.int32)
    if offset is not None:
        whole = op.call(torch.add, whole, op.method("to", offset, torch.int32))
    return op.method("to", op.call(torch.clamp, whole, *integer_range(target)), carrier(target))


def _quantized_type(op: Op) -> torch.dtype:
    named = (op.maybe_int("output_dtype") or 0) if op.version >= 21 else 0
    wanted = dtype_from_attribute(op, named) if named else None
    found = op.value(2).dtype if op.has(2) else wanted or torch.uint8
    if wanted not in (None, found):
        raise op.refuse(f"output_dtype {named} is not the zero point's element type")
    is_small_float = found in FLOAT8 or found == FLOAT4
    if not is_small_float and (found.is_floating_point or num_bits(found) > 16):
        raise op.refuse(f"{element_type_name(found)} is no type to quantize to")
    return found


def _computed_type(op: Op, elem_type: int) -> torch.dtype:
    """Return the float type that an attribute asks to compute in."""
    dtype = dtype_from_attribute(op, elem_type)
    if not dtype.is_floating_point or dtype in CARRIED:
        raise op.refuse(f"{element_type_name(dtype)} is no type to compute in")
    return dtype


def _division_type(op: Op) -> torch.dtype:
    """Return the type to divide in: the scale's, unless the node names one."""
    named = (op.maybe_int("precision") or 0) if op.version >= 23 else 0
    x = op.value(0).dtype
    scale = op.value(1).dtype
    if named:
        return _computed_type(op, named)
    if not scale.is_floating_point or scale in CARRIED:
        raise op.refuse(f"a scale of {element_type_name(scale)} needs the attribute precision")
    if x not in (scale, torch.int32):
        raise op.refuse("x and scale of two float types need the attribute precision")
    return scale


def _check_no_zero_point(op: Op) -> None:
    """A zero point of small floats says no more than their type; ONNX adds only zeros."""
    if not op.has(2):
        return
    given = op.value(2)
    if not isinstance(given, Constant) or bool(given.array.astype("float32").any()):
        raise op.refuse("a zero point of small floats must be constant and zero")


def spread(op: Op, parameter: Tensor, x: Tensor) -> torch.fx.Node:
    """Return a scale or zero point in a shape that broadcasts with x.

    One element is for all of x, a vector runs along the axis, and a tensor of x's rank
    holds one element per block of the axis.

    Args:
        op: the node; has axis and block size.
        parameter: scale or zero point.
        x: what it is applied to.

    Raises:
        UnsupportedGraphError: a shape that ONNX does not have in this version.
    """
    block = op.attr_int("block_size") if op.version >= 21 else 0
    if parameter.rank == 0:
        return parameter.node
    if all(size == 1 for size in parameter.dims) and not block:
        return op.call(torch.reshape, parameter, [])
    if op.version < 13:
        raise op.refuse("the scale has more than one element, which opset 13 introduced")
    axis = op.axis(op.attr_int("axis"), x.rank)
    if not block:
        if parameter.rank != 1:
            raise op.refuse(f"a scale of rank {parameter.rank} needs block_size")
        return op.call(torch.reshape, parameter, [-1 if a == axis else 1 for a in range(x.rank)])
    return _blocks(op, parameter, x, axis, block)


def _blocks(op: Op, parameter: Tensor, x: Tensor, axis: int, block: int) -> torch.fx.Node:
    if parameter.rank != x.rank or block < 0:
        found = f"a scale of rank {parameter.rank} with block_size {block}"
        raise op.refuse(f"{found} does not fit x of rank {x.rank}")
    repeated = op.call(torch.repeat_interleave, parameter, block, axis)
    whole = parameter.dims[axis]
    size = op.graph.dim(x, axis)
    if not isinstance(size, Sym) and isinstance(whole, int) and whole * block == size:
        return repeated
    # The last block may be shorter.
    return op.call(torch.narrow, repeated, axis, 0, size)


@converter("DequantizeLinear", versions=_VERSIONS, carried=CARRIED)
def dequantize_linear(op: Op) -> Tensor:
    """Subtract the zero point and multiply by the scale."""
    x = op.tensor(0)
    target = _dequantized_type(op)
    node = numbers(op, x)
    if x.dtype in FLOAT8 or x.dtype == FLOAT4:
        _check_no_zero_point(op)
    elif op.has(2):
        offset = op.method("to", spread(op, op.tensor(2), x), torch.int32)
        node = op.call(torch.sub, op.method("to", node, torch.int32), offset)
    # In float32, then cast, as ONNX's own definition has it. A graph whose float32 runs in 16
    # bits computes in float32 all the same: those cannot hold every integer.
    is_half = op.graph.float_dtype.itemsize == 2
    wide = torch.float32 if is_half else op.graph.dtype(torch.float32)
    scale = op.method("to", spread(op, emit_cast(op, op.tensor(1), torch.float32), x), wide)
    product = op.call(operator.mul, op.method("to", node, wide), scale)
    return Tensor(op.method("to", product, op.graph.dtype(target)), target, x.dims)


def _dequantized_type(op: Op) -> torch.dtype:
    named = (op.maybe_int("output_dtype") or 0) if op.version >= 23 else 0
    if named:
        return _computed_type(op, named)
    if op.value(1).dtype == SCALE8:
        raise op.refuse("a scale of FLOAT8E8M0 needs the attribute output_dtype")
    return op.value(1).dtype


@converter("DynamicQuantizeLinear", versions=(11,))
def dynamic_quantize_linear(op: Op) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize to UINT8 with the scale and zero point that the data itself asks for."""
    x = op.tensor(0)
    low = op.call(torch.clamp, op.call(torch.amin, x), max=0.0)
    high = op.call(torch.clamp, op.call(torch.amax, x), min=0.0)
    # Zero is within, as ONNX requires: pads and ReLUs have to be exact.
    span = op.call(torch.sub, high, low)
    # All zeros need any scale but zero.
    span = op.call(torch.where, op.call(torch.eq, span, 0), 1.0, span)
    scale = op.call(torch.div, span, 255.0)
    zero = op.call(torch.div, op.call(torch.neg, low), scale)
    zero = op.method("to", op.call(torch.round, op.call(torch.clamp, zero, 0, 255)), torch.uint8)
    divided = op.call(torch.div, x, scale)
    y = emit_rounded(op, divided, zero, torch.uint8)
    return (
        Tensor(y, torch.uint8, x.dims),
        Tensor(scale, torch.float32, ()),
        Tensor(zero, torch.uint8, ()),
    )
