"""Arithmetic of two or more operands with multidirectional broadcasting."""

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from compiler_worker.onnx_to_fx.converter_table import ConvertOnHost, converter
from compiler_worker.onnx_to_fx.converters.elementwise import unsigned
from compiler_worker.onnx_to_fx.converters.elementwise.elements import emit_cast, wrapped
from compiler_worker.onnx_to_fx.dtypes import WIDE_UNSIGNED, num_bits
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_max, sym_min, truncated_div
from compiler_worker.onnx_to_fx.values import HostValue, Tensor, broadcast_dims, host_elementwise


def emit_binary(
    op: Op, function: Callable[..., Any], *, dtype: torch.dtype | None = None
) -> Tensor:
    """Emit a Python operator on inputs 0 and 1; one scalar constant goes in as a number.

    Python operators, rather than torch functions, take a number on either side.

    Args:
        op: has the inputs.
        function: of Python's `operator`.
        dtype: element type of the result; None is that of input 0.
    """
    left_dims = op.value(0).dims
    right_dims = op.value(1).dims
    left: Any = op.operand(0, len(right_dims))
    right: Any = op.operand(1, len(left_dims))
    if not isinstance(left, Tensor) and not isinstance(right, Tensor):
        left = op.tensor(0)
    node = op.call(function, left, right)
    return Tensor(node, dtype or op.value(0).dtype, broadcast_dims(left_dims, right_dims))


def emit_tensor_first(op: Op, function: Callable[..., Any], **options: Any) -> Tensor:
    """Emit a torch function of inputs 0 and 1 that takes a number only on the right.

    Args:
        op: has the inputs.
        function: of torch.
        **options: keyword arguments of `function`.
    """
    x = op.tensor(0)
    y = op.operand(1, x.rank)
    node = op.call(function, x, y, **options)
    return Tensor(node, x.dtype, broadcast_dims(x.dims, op.value(1).dims))


def on_host(function: Callable[[Any, Any], Any], dtype: torch.dtype | None = None) -> ConvertOnHost:
    """Return the host half of a binary op; a None from `function` sends it to the device."""

    def convert(op: Op) -> HostValue | None:
        found = dtype or op.value(0).dtype
        result = host_elementwise(function, op.host(0), op.host(1), dtype=found)
        return None if any(item is None for item in result.data.reshape(-1)) else result

    return convert


def _operator(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    return lambda op: unsigned.wrap(op, emit_binary(op, function))


def _div(op: Op) -> Tensor:
    if op.value(0).dtype in WIDE_UNSIGNED:
        return unsigned.quotient(op, op.tensor(0), op.tensor(1))
    if op.value(0).dtype.is_floating_point:
        return emit_binary(op, operator.truediv)
    # ONNX divides integers as C does: toward zero.
    return emit_tensor_first(op, torch.div, rounding_mode="trunc")


_BASIC: dict[str, tuple[Callable[[Op], Tensor], Callable[[Any, Any], Any]]] = {
    "Add": (_operator(operator.add), operator.add),
    "Sub": (_operator(operator.sub), operator.sub),
    "Mul": (_operator(operator.mul), operator.mul),
    "Div": (_div, truncated_div),
}
for _name, (_convert, _host) in _BASIC.items():
    converter(_name, versions=(7, 13, 14), host=on_host(_host), carried=WIDE_UNSIGNED)(_convert)


@converter("Pow", versions=(7, 12, 13, 15), carried=WIDE_UNSIGNED)
def power(op: Op) -> Tensor:
    """Raise to a power; the result has the base's type whatever the exponent's is."""
    base = op.value(0)
    exponent = op.value(1)
    if exponent.dtype in WIDE_UNSIGNED and base.dtype.is_floating_point:
        x = op.tensor(0)
        y = emit_cast(op, op.tensor(1), base.dtype)
        return Tensor(op.call(torch.pow, x, y), x.dtype, broadcast_dims(x.dims, y.dims))
    if WIDE_UNSIGNED & {base.dtype, exponent.dtype}:
        raise op.refuse("integer powers of unsigned numbers are not translated")
    if base.dtype == exponent.dtype:
        return emit_binary(op, operator.pow)
    wide = torch.promote_types(base.dtype, exponent.dtype)
    if not base.dtype.is_floating_point and wide.is_floating_point:
        # Of float32 an integer's last digits would be lost.
        wide = torch.float64
    x = op.tensor(0)
    y = op.tensor(1)
    dtype = op.graph.dtype
    node = op.call(torch.pow, _to(op, x, dtype(wide)), _to(op, y, dtype(wide)))
    return Tensor(_to(op, node, dtype(base.dtype)), base.dtype, broadcast_dims(x.dims, y.dims))


def _to(op: Op, x: Tensor | torch.fx.Node, dtype: torch.dtype | torch.fx.Node) -> torch.fx.Node:
    return op.method("to", x, dtype)


def _mod_on_host(op: Op) -> HostValue | Sequence[HostValue] | None:
    return on_host(_c_remainder if op.attr_int("fmod") else _remainder)(op)


def _remainder(left: HostInt, right: HostInt) -> HostInt | None:
    return None if not isinstance(right, Sym) and right == 0 else left % right


def _c_remainder(left: HostInt, right: HostInt) -> HostInt | None:
    """The remainder with the dividend's sign, None where signs are not known."""
    quotient = truncated_div(left, right)
    return None if quotient is None else left - quotient * right


@converter("Mod", versions=(10, 13, 28), host=_mod_on_host, carried=WIDE_UNSIGNED)
def modulo(op: Op) -> Tensor:
    """Remainder with the divisor's sign (integers), or C's fmod."""
    if op.value(0).dtype in WIDE_UNSIGNED:
        return unsigned.remainder(op, op.tensor(0), op.tensor(1))
    function = torch.fmod if op.attr_int("fmod") else torch.remainder
    return emit_tensor_first(op, function)


def _variadic(
    emit: Callable[[Op, Callable[..., Any], Tensor, Tensor], Tensor], function: Callable[..., Any]
) -> Callable[[Op], Tensor]:
    return lambda op: reduce(partial(emit, op, function), op.tensors())


def _pairwise(op: Op, function: Callable[..., Any], x: Tensor, y: Tensor) -> Tensor:
    return Tensor(op.call(function, x, y), x.dtype, broadcast_dims(x.dims, y.dims))


def _variadic_on_host(function: Callable[[Any, Any], Any]) -> ConvertOnHost:
    def convert(op: Op) -> HostValue:
        arrays = [op.host(index) for index in range(len(op.inputs))]
        result = reduce(np.frompyfunc(function, 2, 1), arrays)
        return HostValue(np.asarray(result, dtype=object), op.value(0).dtype)

    return convert


for _name, _pick, _pick_on_host in (
    ("Max", torch.maximum, sym_max),
    ("Min", torch.minimum, sym_min),
):
    converter(
        _name, versions=(6, 8, 12, 13), host=_variadic_on_host(_pick_on_host), carried=WIDE_UNSIGNED
    )(_variadic(unsigned.emit_ordered, _pick))
converter("Sum", versions=(6, 8, 13))(_variadic(_pairwise, operator.add))


@converter("Mean", versions=(6, 8, 13))
def mean(op: Op) -> Tensor:
    """Mean of the operands, element by element."""
    total = _variadic(_pairwise, operator.add)(op)
    return total.like(op.call(operator.truediv, total, len(op.inputs)))


def _bitwise(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    return lambda op: emit_tensor_first(op, function)


for _name, _function in {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}.items():
    converter(_name, versions=(18,), carried=WIDE_UNSIGNED)(_bitwise(_function))


@converter("BitShift", versions=(11, 28), carried=WIDE_UNSIGNED)
def bit_shift(op: Op) -> Tensor:
    """Shift bits left or right; by the width or more, only the sign bit's copies are left."""
    x = op.tensor(0)
    count = op.tensor(1)
    width = num_bits(x.dtype)
    inside = op.call(
        torch.logical_and, op.call(torch.ge, count, 0), op.call(torch.lt, count, width)
    )
    # C leaves shifts by the width and more undefined, and so does torch.
    safe = op.call(torch.where, inside, count, 0)
    if op.attr_str("direction") == "LEFT":
        moved = op.call(torch.bitwise_left_shift, x, safe)
        shifted = wrapped(op, moved, x.dtype)
        rest = op.call(torch.zeros_like, x)
    else:
        shifted = unsigned.shifted_right(op, x, safe)
        rest = op.call(torch.zeros_like, x)
        if x.dtype.is_signed:
            rest = op.call(torch.neg, op.method("to", op.call(torch.lt, x, 0), x.dtype))
    dims = broadcast_dims(x.dims, count.dims)
    return Tensor(op.call(torch.where, inside, shifted, rest), x.dtype, dims)
