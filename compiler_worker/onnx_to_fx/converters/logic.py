"""Comparisons, boolean logic and choice."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from compiler_worker.onnx_to_fx.converters.binary import emit_binary, on_host
from compiler_worker.onnx_to_fx.converters.unsigned import ordered
from compiler_worker.onnx_to_fx.dtypes import WIDE_UNSIGNED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import ConvertOnHost, converter, register
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, known_equal
from compiler_worker.onnx_to_fx.values import Host, Tensor, broadcast_dims


def _comparison(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        if op.value(0).dtype != torch.uint64:
            return emit_binary(op, function, dtype=torch.bool)
        x, y = op.tensor(0), op.tensor(1)
        node = op.call(function, ordered(op, x), ordered(op, y))
        return Tensor(node, torch.bool, broadcast_dims(x.dims, y.dims))

    return convert


def _static_only(function: Callable[[int, int], bool]) -> ConvertOnHost:
    """Compare on the host where both sides are plain ints; symbolic ones go to the device."""

    def compare(left: HostInt, right: HostInt) -> bool | None:
        if isinstance(left, Sym) or isinstance(right, Sym):
            return None
        return bool(function(left, right))

    return on_host(compare, torch.bool)


_COMPARISONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "Greater": (operator.gt, (7, 9, 13)),
    "GreaterOrEqual": (operator.ge, (12, 16)),
    "Less": (operator.lt, (7, 9, 13)),
    "LessOrEqual": (operator.le, (12, 16)),
}
for _name, (_function, _versions) in _COMPARISONS.items():
    register(
        _name,
        _comparison(_function),
        versions=_versions,
        host=_static_only(_function),
        carried=WIDE_UNSIGNED,
    )

register(
    "Equal",
    _comparison(operator.eq),
    versions=(7, 11, 13, 19),
    host=on_host(known_equal, torch.bool),
    carried=WIDE_UNSIGNED,
)

for _name, _function in {
    "And": operator.and_,
    "Or": operator.or_,
    "Xor": operator.xor,
}.items():
    register(_name, _comparison(_function), versions=(7,), host=_static_only(_function))


def _not_on_host(op: Op) -> Host | None:
    data = op.host(0)
    if any(isinstance(item, Sym) for item in data.reshape(-1)):
        return None
    return Host(np.asarray(np.frompyfunc(operator.not_, 1, 1)(data), dtype=object), torch.bool)


@converter("Not", versions=(1,), host=_not_on_host)
def logical_not(op: Op) -> Tensor:
    """Boolean negation."""
    x = op.tensor(0)
    return x.like(op.call(torch.logical_not, x))


def _where_on_host(op: Op) -> Host | None:
    condition = op.host(0)
    if any(isinstance(item, Sym) for item in condition.reshape(-1)):
        return None
    data = np.where(condition.astype(bool), op.host(1), op.host(2))
    return Host(np.asarray(data, dtype=object), op.value(1).dtype)


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
