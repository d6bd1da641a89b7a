"""Comparisons, boolean logic and choice."""

import operator
from collections.abc import Callable
from typing import Any

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.binary import emit_binary, on_host
from compiler_worker.onnx_to_fx.converters.elementwise.unsigned import ordered
from compiler_worker.onnx_to_fx.dtypes import WIDE_UNSIGNED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import (
    sym_choice,
    sym_equal,
    sym_greater,
    sym_max,
    sym_min,
    sym_not,
)
from compiler_worker.onnx_to_fx.values import HostValue, Tensor, broadcast_dims, host_elementwise


def _comparison(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        if op.value(0).dtype != torch.uint64:
            return emit_binary(op, function, dtype=torch.bool)
        x = op.tensor(0)
        y = op.tensor(1)
        node = op.call(function, ordered(op, x), ordered(op, y))
        return Tensor(node, torch.bool, broadcast_dims(x.dims, y.dims))

    return convert


# What the device computes, and what the host does.
_COMPARISONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "Equal": (operator.eq, sym_equal, (7, 11, 13, 19)),
    "Greater": (operator.gt, sym_greater, (7, 9, 13)),
    "GreaterOrEqual": (operator.ge, lambda x, y: sym_not(sym_greater(y, x)), (12, 16)),
    "Less": (operator.lt, lambda x, y: sym_greater(y, x), (7, 9, 13)),
    "LessOrEqual": (operator.le, lambda x, y: sym_not(sym_greater(x, y)), (12, 16)),
    # Booleans of the host are 0 and 1: their least is And, their largest is Or.
    "And": (operator.and_, sym_min, (7,)),
    "Or": (operator.or_, sym_max, (7,)),
    "Xor": (operator.xor, lambda x, y: sym_not(sym_equal(x, y)), (7,)),
}
for _name, (_function, _on_host, _versions) in _COMPARISONS.items():
    converter(_name, versions=_versions, host=on_host(_on_host, torch.bool), carried=WIDE_UNSIGNED)(
        _comparison(_function)
    )


def _not_on_host(op: Op) -> HostValue:
    return host_elementwise(sym_not, op.host(0), dtype=torch.bool)


@converter("Not", versions=(1,), host=_not_on_host)
def logical_not(op: Op) -> Tensor:
    """Boolean negation."""
    x = op.tensor(0)
    return x.like(op.call(torch.logical_not, x))


def _where_on_host(op: Op) -> HostValue:
    return host_elementwise(sym_choice, *map(op.host, range(3)), dtype=op.value(1).dtype)


@converter("Where", versions=(9, 16), host=_where_on_host, carried=WIDE_UNSIGNED)
def where(op: Op) -> Tensor:
    """Choose element by element; scalar branches go in as numbers."""
    condition = op.tensor(0)
    dims = broadcast_dims(condition.dims, op.value(1).dims, op.value(2).dims)
    dtype = op.value(1).dtype
    left: Any = op.operand(1, max(condition.rank, len(op.value(2).dims)))
    right: Any = op.operand(2, max(condition.rank, len(op.value(1).dims)))
    if not isinstance(left, Tensor) and not isinstance(right, Tensor):
        # Two numbers would take torch's default type rather than the master's.
        left = op.tensor(1)
    return Tensor(op.call(torch.where, condition, left, right), dtype, dims)
