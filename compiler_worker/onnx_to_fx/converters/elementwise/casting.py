"""Changes of the element type, by value and by bits."""

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.elements import emit_cast, wrapped
from compiler_worker.onnx_to_fx.dtypes import (
    CARRIED,
    NARROW_INTS,
    WIDE_UNSIGNED,
    array_sharing_memory,
    carrier,
    element_type_name,
    num_bits,
    onnx_type_name,
    tensor_sharing_memory,
    torch_dtype_from_onnx,
)
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_equal, sym_not
from compiler_worker.onnx_to_fx.values import Constant, HostValue, Tensor, host_elementwise

HOST_TYPES = (torch.int64, torch.int32, torch.bool)


def dtype_from_attribute(op: Op, elem_type: int) -> torch.dtype:
    """Return the torch dtype an attribute names; raises UnsupportedGraphError without one."""
    dtype = torch_dtype_from_onnx(elem_type)
    if dtype is None:
        raise op.refuse(f"element type {onnx_type_name(elem_type)} is not translated")
    return dtype


def _cast_on_host(op: Op) -> HostValue | None:
    return _host_cast(op, dtype_from_attribute(op, op.attr_int("to")))


def _host_cast(op: Op, dtype: torch.dtype) -> HostValue | None:
    if dtype not in HOST_TYPES:
        return None
    kind = _truth if dtype == torch.bool else _integer
    return host_elementwise(kind, op.host(0), dtype=dtype)


def _truth(item: HostInt) -> HostInt:
    return sym_not(sym_equal(item, 0))


def _integer(item: HostInt) -> HostInt:
    return item if isinstance(item, Sym) else int(item)


@converter("Cast", versions=(6, 9, 13, 19, 21, 23, 24, 25, 28), host=_cast_on_host, carried=CARRIED)
def cast(op: Op) -> Tensor | Constant:
    """Change the element type."""
    return _cast(op, dtype_from_attribute(op, op.attr_int("to")))


def _cast_like_on_host(op: Op) -> HostValue | None:
    return _host_cast(op, op.value(1).dtype)


@converter("CastLike", versions=(15, 19, 21, 23, 24, 25), host=_cast_like_on_host, carried=CARRIED)
def cast_like(op: Op) -> Tensor | Constant:
    """Change the element type to that of the second input."""
    return _cast(op, op.value(1).dtype)


def _cast(op: Op, dtype: torch.dtype) -> Tensor | Constant:
    given = op.value(0)
    is_scalar = isinstance(given, Constant) and given.array.size == 1
    if isinstance(given, Constant) and is_scalar and not {given.dtype, dtype} & CARRIED:
        # A scalar stays a constant, so that it can still be read as a number.
        array = tensor_sharing_memory(given.array).to(dtype)
        return Constant(f"{given.name}_cast", array_sharing_memory(array), dtype)
    saturate = op.version < 19 or bool(op.attr_int("saturate"))
    round_mode = op.attr_str("round_mode") if op.version >= 24 else "up"
    return emit_cast(op, op.tensor(0), dtype, saturate=saturate, round_mode=round_mode)


@converter("BitCast", versions=(26,), carried=CARRIED)
def bit_cast(op: Op) -> Tensor:
    """The same bits read as another element type.

    Raises UnsupportedGraphError for types of different width, and for BOOL from other types.
    """
    x = op.tensor(0)
    target = dtype_from_attribute(op, op.attr_int("to"))
    if num_bits(x.dtype) != num_bits(target):
        names = f"{element_type_name(x.dtype)} and {element_type_name(target)}"
        raise op.refuse(f"{names} have different numbers of bits")
    if target == torch.bool and x.dtype != torch.bool:
        raise op.refuse("bits other than 0 and 1 are no BOOL")
    return x.like(_from_bits(op, _bits(op, x), target), dtype=target)


def _bits(op: Op, x: Tensor) -> torch.fx.Node:
    """Return the bits in a signed integer of the size, or in the low end of a uint8."""
    width = num_bits(x.dtype)
    if width < 8:
        low = op.call(torch.bitwise_and, x, (1 << width) - 1)
        return op.method("to", low, torch.uint8)
    whole = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    if x.dtype in CARRIED:
        return op.method("to", x, whole)
    # The master's float32 may run as another type; its bits are those of a float32.
    return op.method("view", op.method("to", x, x.dtype), whole)


def _from_bits(op: Op, bits: torch.fx.Node, target: torch.dtype) -> torch.fx.Node:
    if target in WIDE_UNSIGNED:
        return wrapped(op, op.method("to", bits, carrier(target)), target)
    if target in NARROW_INTS:
        return wrapped(op, op.method("view", bits, carrier(target)), target)
    if target in CARRIED:
        return bits
    return op.method("to", op.method("view", bits, target), op.graph.dtype(target))
