"""Activation functions."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import product
from compiler_worker.onnx_to_fx.values import Tensor, broadcast_dims


@converter("Softplus", versions=(1, 22))
def softplus(op: Op) -> Tensor:
    """log(1 + exp(x)), exact over the whole range rather than linear above a threshold."""
    x = op.tensor(0)
    zero = op.call(torch.zeros_like, x)
    return x.like(op.call(torch.logaddexp, x, zero))


@converter("Gelu", versions=(20,))
def gelu(op: Op) -> Tensor:
    """Gaussian error linear unit, by erf or by tanh as the graph says."""
    x = op.tensor(0)
    return x.like(op.call(functional.gelu, x, approximate=op.attr_str("approximate")))


@converter("Elu", versions=(6, 22))
def elu(op: Op) -> Tensor:
    """Exponential linear unit."""
    x = op.tensor(0)
    return x.like(op.call(functional.elu, x, op.attr_float("alpha")))


@converter("Celu", versions=(12, 28))
def celu(op: Op) -> Tensor:
    """Elu whose slope is continuous; ONNX's own body for it makes a row of a scalar."""
    x = op.tensor(0)
    alpha = op.attr_float("alpha")
    inner = op.call(functional.elu, op.call(torch.div, x, alpha))
    return x.like(op.call(torch.mul, inner, alpha))


@converter("LeakyRelu", versions=(6, 16))
def leaky_relu(op: Op) -> Tensor:
    """Relu with a slope below zero."""
    x = op.tensor(0)
    return x.like(op.call(functional.leaky_relu, x, op.attr_float("alpha")))


@converter("PRelu", versions=(7, 9, 16))
def prelu(op: Op) -> Tensor:
    """Relu with a learnt slope; the slope broadcasts to the input."""
    x = op.tensor(0)
    slope = op.tensor(1)
    negative = op.call(torch.mul, x, slope)
    keep = op.call(torch.ge, x, 0)
    node = op.call(torch.where, keep, x, negative)
    return Tensor(node, x.dtype, broadcast_dims(x.dims, slope.dims))


@converter("Shrink", versions=(9,))
def shrink(op: Op) -> Tensor:
    """Nearer to 0 by `bias`, and 0 within `lambd` of it.

    Integers are shrunk as floats and cut off, as ONNX Runtime does and the reference evaluator;
    ONNX's own body for it cuts off the bias.
    """
    x = op.tensor(0)
    bias = op.attr_float("bias")
    width = op.attr_float("lambd")
    lower = op.call(torch.sub, x, bias)
    higher = op.call(torch.add, x, bias)
    inner = op.call(torch.where, op.call(torch.lt, x, -width), higher, 0.0)
    shrunk = op.call(torch.where, op.call(torch.gt, x, width), lower, inner)
    return x.like(op.method("to", shrunk, op.graph.dtype(x.dtype)))


def _normalising(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        axis = op.axis(op.attr_int("axis"), x.rank)
        return x.like(op.call(function, x, dim=axis))

    return convert


def _flattening(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    """Before version 13 every axis from `axis` on was normalised as one."""

    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        dims = op.dims(0)
        axis = op.axis(op.attr_int("axis"), x.rank)
        flat = op.call(torch.reshape, x, [product(dims[:axis]), product(dims[axis:])])
        return x.like(op.call(torch.reshape, op.call(function, flat, dim=1), dims))

    return convert


for _name, _function in {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}.items():
    converter(_name, versions=(13,))(_normalising(_function))
    converter(_name, versions=(1, 11))(_flattening(_function))
