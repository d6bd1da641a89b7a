"""Ops as opset 6 has them: broadcasting is asked for, and inference is a mode of the node."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converters.linear import emit_gemm
from compiler_worker.onnx_to_fx.converters.windows import window
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter, register
from compiler_worker.onnx_to_fx.values import Tensor, broadcast_dims

_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _placed(op: Op, x: Tensor, y: Tensor) -> Tensor:
    """Return the second operand with its axes where `axis` puts them among the first's."""
    if not op.attr_int("broadcast"):
        known = [pair for pair in zip(x.dims, y.dims, strict=False) if None not in pair]
        if x.rank != y.rank or any(left != right for left, right in known):
            raise op.refuse("operands of different shapes without broadcast")
        return y
    axis = op.maybe_int("axis")
    is_single = all(size == 1 for size in y.dims)
    if axis is None or is_single:
        return y
    after = x.rank - op.axis(axis, x.rank) - y.rank
    if after < 0:
        raise op.refuse(f"axis {axis} leaves no room for {y.rank} axes of {x.rank}")
    node = y.node
    for _ in range(after):
        node = op.call(torch.unsqueeze, node, -1)
    return Tensor(node, y.dtype, (*y.dims, *(1,) * after))


def _binary(function: Callable[..., Any], result: torch.dtype | None) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        if function in _FLOAT_ONLY and not x.is_float:
            raise op.refuse("integers are not translated before opset 7")
        y = _placed(op, x, op.tensor(1))
        node = op.call(function, x, y)
        return Tensor(node, result or x.dtype, broadcast_dims(x.dims, y.dims))

    return convert


_FLOAT_ONLY = (operator.truediv, operator.pow)
_OPERATORS: dict[str, tuple[Callable[..., Any], int, torch.dtype | None]] = {
    "Add": (operator.add, 6, None),
    "Sub": (operator.sub, 6, None),
    "Mul": (operator.mul, 6, None),
    "Div": (operator.truediv, 6, None),
    "Pow": (operator.pow, 1, None),
    "And": (operator.and_, 1, torch.bool),
    "Or": (operator.or_, 1, torch.bool),
    "Xor": (operator.xor, 1, torch.bool),
    "Equal": (operator.eq, 1, torch.bool),
    "Greater": (operator.gt, 1, torch.bool),
    "Less": (operator.lt, 1, torch.bool),
}
for _name, (_function, _version, _result) in _OPERATORS.items():
    register(
        _name,
        _binary(_function, _result),
        versions=(_version,),
        attributes=("axis", "broadcast"),
    )


@converter("PRelu", versions=(6,))
def prelu(op: Op) -> Tensor:
    """Relu with one learnt slope, or one per channel."""
    x, slope = op.tensor(0), op.tensor(1)
    if slope.rank != 1:
        raise op.refuse(f"a slope of rank {slope.rank}, wanted one element per channel")
    if slope.dims != (1,) and x.rank > 2:
        slope = slope.like(op.call(torch.reshape, slope, [-1] + [1] * (x.rank - 2)))
    negative = op.call(torch.mul, x, slope)
    return x.like(op.call(torch.where, op.call(torch.ge, x, 0), x, negative))


@converter("Gemm", versions=(6,), attributes=("alpha", "beta", "broadcast", "transA", "transB"))
def gemm(op: Op) -> Tensor:
    """Alpha A' B' + beta C, where C may ask to be broadcast."""
    c = op.value(2)
    if not op.attr_int("broadcast") and len(c.dims) != 2:
        raise op.refuse(f"C has rank {len(c.dims)} and does not ask to be broadcast")
    return emit_gemm(op)


@converter(
    "BatchNormalization", versions=(6,), attributes=("epsilon", "is_test", "momentum", "spatial")
)
def batch_normalization(op: Op) -> Tensor:
    """Normalise each channel with the recorded mean and variance."""
    x, scale, bias, mean, variance = (op.tensor(index) for index in range(5))
    if not op.attr_int("is_test") or op.has_output(1):
        raise op.refuse("training mode (is_test 0) is not translated")
    if op.attr_int("spatial") != 1:
        raise op.refuse("statistics per element (spatial 0) are not translated")
    epsilon = op.attr_float("epsilon")
    node = op.call(functional.batch_norm, x, mean, variance, scale, bias, False, 0.0, epsilon)
    return x.like(node)


@converter("Dropout", versions=(6,), attributes=("is_test", "ratio"))
def dropout(op: Op) -> Tensor:
    """The identity in inference, the only mode translated."""
    if not op.attr_int("is_test"):
        raise op.refuse("training mode (is_test 0) is not translated")
    return op.tensor(0)


@converter("AveragePool", versions=(1,), attributes=("auto_pad", "kernel_shape", "pads", "strides"))
def average_pool(op: Op) -> Tensor:
    """Mean of each window; whether padding counted was not said then."""
    x, kernel = op.tensor(0), op.maybe_ints("kernel_shape")
    if kernel is None:
        raise op.refuse("kernel_shape is required and missing")
    box = window(op, x, kernel)
    if box.symmetric_padding() != [0] * box.rank:
        raise op.refuse("padding is not translated before opset 7")
    node = op.call(_AVERAGE[box.rank], x, box.kernel, box.strides)
    return Tensor(node, x.dtype, (*x.dims[:2], *(None,) * box.rank))
