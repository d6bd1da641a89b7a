"""Arithmetic of UINT16, UINT32 and UINT64 on the signed integers that carry them.

Sums, differences and products of the carriers are right in their lower bits, and those are
kept. UINT64 is held in int64 by its bits, so that what depends on the size of a number (order,
quotients, shifts to the right) is done here.
"""

from collections.abc import Callable
from typing import Any

import torch

from compiler_worker.onnx_to_fx.converters.elementwise.elements import wrapped
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor, broadcast_dims

_LEAST = -(1 << 63)
_LARGEST = (1 << 63) - 1
Node = torch.fx.Node


def wrap(op: Op, x: Tensor) -> Tensor:
    """Return a result modulo the range of its element type."""
    return x.like(wrapped(op, x.node, x.dtype))


def ordered(op: Op, x: Tensor) -> Node:
    """Return integers in the order of the elements; `ordered` again undoes it."""
    if x.dtype != torch.uint64:
        return x.node
    return _flipped(op, x.node)


def _flipped(op: Op, node: Node) -> Node:
    return op.call(torch.bitwise_xor, node, _LEAST)


def emit_ordered(op: Op, function: Callable[..., Any], x: Tensor, y: Tensor) -> Tensor:
    """Emit a function that picks one of two elements by their order.

    Args:
        op: the node.
        function: torch.maximum or torch.minimum.
        x: integers; broadcast with y.
        y: of the same type.
    """
    node = op.call(function, ordered(op, x), ordered(op, y))
    picked = Tensor(node, x.dtype, broadcast_dims(x.dims, y.dims))
    return picked.like(ordered(op, picked))


def quotient(op: Op, x: Tensor, y: Tensor) -> Tensor:
    """Return the quotient, rounded down.

    Args:
        op: the node.
        x: dividend, unsigned; broadcast with y.
        y: divisor, of the same type.
    """
    dims = broadcast_dims(x.dims, y.dims)
    if x.dtype != torch.uint64:
        return Tensor(op.call(torch.div, x, y, rounding_mode="trunc"), x.dtype, dims)
    is_large = op.call(torch.lt, y, 0)
    # A divisor of 2^63 and more goes into a number once or not at all. Dividing half of the
    # number by a smaller one gives a quotient that is right or one too small.
    safe = op.call(torch.where, is_large, _LARGEST, y)
    half = op.call(torch.div, _shifted_once(op, x.node), safe, rounding_mode="trunc")
    twice = op.call(torch.bitwise_left_shift, half, 1)
    rest = op.call(torch.sub, x, op.call(torch.mul, twice, y))
    found = op.call(torch.where, is_large, 0, twice)
    rest = op.call(torch.where, is_large, x, rest)
    is_left = op.call(torch.ge, _flipped(op, rest), _flipped(op, y.node))
    return Tensor(op.call(torch.add, found, is_left), x.dtype, dims)


def remainder(op: Op, x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of x divided by y.

    Args:
        op: the node.
        x: dividend, unsigned; broadcast with y.
        y: divisor, of the same type.
    """
    whole = quotient(op, x, y)
    return whole.like(op.call(torch.sub, x, op.call(torch.mul, whole, y)))


def _shifted_once(op: Op, node: Node) -> Node:
    return op.call(torch.bitwise_and, op.call(torch.bitwise_right_shift, node, 1), _LARGEST)


def shifted_right(op: Op, x: Tensor, count: Node) -> Node:
    """Return bits moved to the right, filled with zeros.

    Args:
        op: the node.
        x: unsigned.
        count: bits, from 0 to the width less one; broadcasts with x.
    """
    if x.dtype != torch.uint64:
        return op.call(torch.bitwise_right_shift, x, count)
    # Shifting by one clears the sign bit; the rest is a shift of a positive number.
    rest = op.call(torch.clamp, op.call(torch.sub, count, 1), min=0)
    moved = op.call(torch.bitwise_right_shift, _shifted_once(op, x.node), rest)
    return op.call(torch.where, op.call(torch.eq, count, 0), x, moved)
