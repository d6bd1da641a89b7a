"""Products of quantized matrices and images.

They are sums of products of small integers. float64 holds each such sum exactly and has
kernels on every device, which torch's integers have not.
"""

import operator

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.networks.convolution import emit_conv
from compiler_worker.onnx_to_fx.converters.networks.linear import matmul_dims
from compiler_worker.onnx_to_fx.converters.networks.quantization import emit_rounded
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor

Node = torch.fx.Node


def _centred(op: Op, x: Tensor, offset: Node | None) -> Node:
    """Return x minus its zero point, in float64."""
    wide = op.method("to", x, torch.float64)
    if offset is None:
        return wide
    return op.call(torch.sub, wide, op.method("to", offset, torch.float64))


def _along(op: Op, index: int, axis: int | None, rank: int) -> Node | None:
    """Return a scale or zero point in a shape that broadcasts with a value of `rank` axes.

    A vector runs along `axis`, or is refused where there is none.
    """
    if not op.has(index):
        return None
    parameter = op.tensor(index)
    if parameter.rank == 0:
        return parameter.node
    if all(size == 1 for size in parameter.dims):
        return op.call(torch.reshape, parameter, [])
    if parameter.rank == 1 and axis is not None:
        return op.call(torch.reshape, parameter, [-1 if a == axis else 1 for a in range(rank)])
    raise op.refuse(f"input {index} holds more elements than are translated")


def _beside_matrix(op: Op, index: int, axis: int, rank: int) -> Node | None:
    """Return what a matrix has one of per row or column: a vector, or axes in their place."""
    if op.has(index) and 1 < len(op.value(index).dims) == rank:
        return op.tensor(index).node
    return _along(op, index, rank + axis if rank == 2 else None, rank)


def _matrix_product(op: Op, indices: tuple[int, int, int, int]) -> Tensor:
    """Return the product of two matrices less their zero points, in float64."""
    a = op.tensor(indices[0])
    b = op.tensor(indices[1])
    rows = _beside_matrix(op, indices[2], -2, a.rank)
    columns = _beside_matrix(op, indices[3], -1, b.rank)
    product = op.call(torch.matmul, _centred(op, a, rows), _centred(op, b, columns))
    return Tensor(product, torch.float64, matmul_dims(a.dims, b.dims))


def _as_int32(op: Op, x: Tensor) -> Tensor:
    # Through int64, whose upper bits are dropped: 32 bits may overflow, no more.
    whole = op.method("to", x, torch.int64)
    return x.like(op.method("to", whole, torch.int32), dtype=torch.int32)


@converter("MatMulInteger", versions=(10,))
def matmul_integer(op: Op) -> Tensor:
    """Matrix product of 8-bit integers, in 32 bits."""
    return _as_int32(op, _matrix_product(op, (0, 1, 2, 3)))


@converter("QLinearMatMul", versions=(10, 21))
def qlinear_matmul(op: Op) -> Tensor:
    """Matrix product of quantized matrices, quantized again."""
    product = _matrix_product(op, (0, 3, 2, 5))
    rank = product.rank
    left = _beside_matrix(op, 1, -2, rank)
    right = _beside_matrix(op, 4, -1, rank)
    return _requantized(op, product, left, right)


def _requantized(op: Op, product: Tensor, left: Node | None, right: Node | None) -> Tensor:
    """Bring sums of products to the scale and zero point of the result, inputs 6 and 7."""
    target = op.value(7).dtype
    wanted, offset = (_along(op, index, None, product.rank) for index in (6, 7))
    # The factor is a float32 whatever float32 runs as: the result is integers.
    left, right, wanted = (op.method("to", part, torch.float32) for part in (left, right, wanted))
    factor = op.call(operator.truediv, op.call(operator.mul, left, right), wanted)
    scaled = op.call(operator.mul, product, op.method("to", factor, torch.float64))
    return product.like(emit_rounded(op, scaled, offset, target), dtype=target)


def _conv_product(op: Op, indices: tuple[int, int, int, int]) -> Tensor:
    """Return the convolution of an image with kernels, both less their zero points."""
    x = op.tensor(indices[0])
    weight = op.tensor(indices[1])
    image = _centred(op, x, _along(op, indices[2], None, x.rank))
    kernel = _centred(op, weight, _along(op, indices[3], 0, weight.rank))
    wide = torch.float64
    return emit_conv(op, x.like(image, dtype=wide), weight.like(kernel, dtype=wide), None)


@converter("ConvInteger", versions=(10,))
def conv_integer(op: Op) -> Tensor:
    """Convolution of 8-bit integers, in 32 bits."""
    return _as_int32(op, _conv_product(op, (0, 1, 2, 3)))


@converter("QLinearConv", versions=(10,))
def qlinear_conv(op: Op) -> Tensor:
    """Convolution of a quantized image with quantized kernels, quantized again."""
    product = _conv_product(op, (0, 3, 2, 5))
    bias = _along(op, 8, 1, product.rank)
    if bias is not None:
        product = product.like(op.call(torch.add, product, bias))
    left = _along(op, 1, None, product.rank)
    right = _along(op, 4, 1, product.rank)
    return _requantized(op, product, left, right)
