"""Pools over windows and over whole feature maps."""

import operator
from typing import Any

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converters.layout import emit_constant_pad
from compiler_worker.onnx_to_fx.converters.windows import Window, window
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.values import Tensor

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_ATTRIBUTES = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def _pool_window(op: Op, x: Tensor) -> Window:
    kernel = op.maybe_ints("kernel_shape")
    if kernel is None:
        raise op.refuse("kernel_shape is required and missing")
    return window(op, x, kernel)


def _pooled(x: Tensor, node: torch.fx.Node) -> Tensor:
    return Tensor(node, x.dtype, (*x.dims[:2], *(None,) * (x.rank - 2)))


def _fits_torch(box: Window, padding: list[int]) -> bool:
    # torch allows padding of half a window at most.
    return all(p * 2 <= k for p, k in zip(padding, box.kernel, strict=True))


@converter("MaxPool", versions=(1, 8, 10, 11, 12, 22), attributes=(*_ATTRIBUTES, "storage_order"))
def max_pool(op: Op) -> Tensor:
    """Largest element of each window."""
    x = op.tensor(0)
    if op.has_output(1):
        raise op.refuse("the indices output is not translated")
    if not x.is_float:
        raise op.refuse(f"element type {x.dtype} is not translated")
    box, ceil = _pool_window(op, x), bool(op.maybe_int("ceil_mode"))
    padding = box.symmetric_padding()
    if padding is None or not _fits_torch(box, padding):
        if ceil:
            raise op.refuse("ceil_mode with padding that torch's pool does not take")
        x = emit_constant_pad(op, x, [0, 0, *box.begins], [0, 0, *box.ends], float("-inf"))
        padding = [0] * box.rank
    node = op.call(
        _MAX[box.rank], x, box.kernel, box.strides, padding, box.dilations, ceil_mode=ceil
    )
    return _pooled(op.tensor(0), node)


@converter(
    "AveragePool", versions=(7, 10, 11, 19, 22), attributes=(*_ATTRIBUTES, "count_include_pad")
)
def average_pool(op: Op) -> Tensor:
    """Mean of each window, with or without the padding in the count."""
    x = op.tensor(0)
    if not x.is_float:
        raise op.refuse(f"element type {x.dtype} is not translated")
    box, ceil = _pool_window(op, x), bool(op.maybe_int("ceil_mode"))
    include = bool(op.attr_int("count_include_pad"))
    padding = box.symmetric_padding()
    dilated = any(step != 1 for step in box.dilations)
    if padding is not None and _fits_torch(box, padding) and not dilated:
        node = op.call(
            _AVERAGE[box.rank],
            x,
            box.kernel,
            box.strides,
            padding,
            ceil_mode=ceil,
            count_include_pad=include,
        )
        return _pooled(x, node)
    if ceil:
        raise op.refuse("ceil_mode with padding or dilation that torch's pool does not take")
    return _average_by_sums(op, x, box, include)


@converter("LpPool", versions=(2, 11, 18, 22), attributes=(*_ATTRIBUTES, "p"))
def lp_pool(op: Op) -> Tensor:
    """p-norm of each window; padding counts as zeros."""
    x, p = op.tensor(0), op.attr_int("p")
    if op.version >= 18 and op.attr_int("ceil_mode"):
        raise op.refuse("ceil_mode is not translated")
    powers = x.like(op.call(torch.pow, op.call(torch.abs, x), p))
    sums = _window_sums(op, powers, _pool_window(op, x))
    return _pooled(x, op.call(torch.pow, sums, 1.0 / p))


def _average_by_sums(op: Op, x: Tensor, box: Window, include: bool) -> Tensor:
    """Divide window sums by window counts; takes any padding and dilation."""
    total = _window_sums(op, x, box)
    if include:
        count: Any = 1
        for size in box.kernel:
            count *= size
    else:
        ones = x.like(op.call(torch.ones_like, x))
        count = _window_sums(op, ones, box)
    return _pooled(x, op.call(operator.truediv, total, count))


def _window_sums(op: Op, x: Tensor, box: Window) -> torch.fx.Node:
    padded = emit_constant_pad(op, x, [0, 0, *box.begins], [0, 0, *box.ends], 0.0)
    node = padded.node
    for axis in range(box.rank):
        # unfold cannot skip elements, so a dilated window is a wide one, thinned out.
        extent = (box.kernel[axis] - 1) * box.dilations[axis] + 1
        unfolded = op.method("unfold", node, axis + 2, extent, box.strides[axis])
        thinned = op.call(
            operator.getitem, unfolded, (Ellipsis, slice(None, None, box.dilations[axis]))
        )
        node = op.call(torch.sum, thinned, -1)
    return node


@converter("GlobalAveragePool", versions=(1, 22))
def global_average_pool(op: Op) -> Tensor:
    """Mean over every spatial axis, kept as size 1."""
    x = op.tensor(0)
    axes = list(range(2, x.rank))
    node = op.call(torch.mean, x, axes, keepdim=True)
    return Tensor(node, x.dtype, (*x.dims[:2], *(1,) * len(axes)))


@converter("GlobalMaxPool", versions=(1, 22))
def global_max_pool(op: Op) -> Tensor:
    """Maximum over every spatial axis, kept as size 1."""
    x = op.tensor(0)
    axes = list(range(2, x.rank))
    node = op.call(torch.amax, x, axes, keepdim=True)
    return Tensor(node, x.dtype, (*x.dims[:2], *(1,) * len(axes)))


@converter("GlobalLpPool", versions=(2, 22), attributes=("p",))
def global_lp_pool(op: Op) -> Tensor:
    """p-norm over every spatial axis, kept as size 1."""
    x = op.tensor(0)
    axes = list(range(2, x.rank))
    node = op.call(torch.linalg.vector_norm, x, op.attr_int("p"), axes, keepdim=True)
    return Tensor(node, x.dtype, (*x.dims[:2], *(1,) * len(axes)))
