"""Pools over windows and over whole feature maps."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.networks.windows import Window, window
from compiler_worker.onnx_to_fx.converters.tensors.layout import emit_constant_pad
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, ceil_div, product, sym_min
from compiler_worker.onnx_to_fx.values import Tensor

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _pool_window(op: Op, x: Tensor) -> Window:
    kernel = op.maybe_ints("kernel_shape")
    if kernel is None:
        raise op.refuse("kernel_shape is required and missing")
    return window(op, x, kernel)


def _pooled(x: Tensor, node: torch.fx.Node) -> Tensor:
    return Tensor(node, x.dtype, (*x.dims[:2], *(None,) * (x.rank - 2)))


def _fits_torch(box: Window, padding: list[int]) -> bool:
    # torch allows padding of half a window at most.
    sides = zip(padding, box.kernel, strict=True)
    return all(not isinstance(k, Sym) and p * 2 <= k for p, k in sides)


@converter("MaxPool", versions=(1, 8, 10, 11, 12, 22))
def max_pool(op: Op) -> tuple[Tensor, Tensor | None]:
    """Largest element of each window, and where it is in the whole input.

    Raises UnsupportedGraphError for integers of more than 8 bits, and for indices with padding
    that torch's pool does not take.
    """
    x = op.tensor(0)
    if not x.is_float and x.dtype not in (torch.int8, torch.uint8):
        raise op.refuse(f"element type {x.dtype} is not translated")
    # torch's kernels take floats alone; one of 16 bits holds every 8-bit integer.
    source = x if x.is_float else x.like(op.method("to", x, torch.float32))
    box = _pool_window(op, x)
    has_ceil = _has_ceil(op)
    padding = box.symmetric_padding()
    has_indices = op.has_output(1)
    if padding is None or not _fits_torch(box, padding):
        if has_indices:
            raise op.refuse("indices with padding that torch's pool does not take")
        # -inf and no zero: a window of negative numbers has its own maximum.
        source = emit_constant_pad(op, source, *_all_pads(op, x, box, has_ceil), float("-inf"))
        padding = [0] * box.rank
        has_ceil = False
    node = op.call(
        _MAX[box.rank],
        source,
        box.kernel,
        box.strides,
        padding,
        box.dilations,
        ceil_mode=has_ceil,
        return_indices=has_indices,
    )
    if has_indices:
        node, index = (op.call(operator.getitem, node, part) for part in (0, 1))
        places = _pooled(x, _in_whole(op, index))
    if not x.is_float:
        node = op.method("to", node, x.dtype)
    return _pooled(x, node), replace(places, dtype=torch.int64) if has_indices else None


@converter("AveragePool", versions=(7, 10, 11, 19, 22))
def average_pool(op: Op) -> Tensor:
    """Mean of each window, with or without the padding in the count.

    Raises UnsupportedGraphError for integers.
    """
    x = op.tensor(0)
    if not x.is_float:
        raise op.refuse(f"element type {x.dtype} is not translated")
    has_ceil = _has_ceil(op)
    box = _pool_window(op, x)
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
            ceil_mode=has_ceil,
            count_include_pad=include,
        )
        return _pooled(x, node)
    return _average_by_sums(op, x, box, has_ceil, include)


@converter("LpPool", versions=(2, 11, 18, 22))
def lp_pool(op: Op) -> Tensor:
    """p-norm of each window; padding counts as zeros."""
    x = op.tensor(0)
    p = op.attr_int("p")
    powers = x.like(op.call(torch.pow, op.call(torch.abs, x), p))
    box = _pool_window(op, x)
    padded = emit_constant_pad(op, powers, *_all_pads(op, x, box, _has_ceil(op)), 0.0)
    return _pooled(x, op.call(torch.pow, _window_sums(op, padded, box), 1.0 / p))


def _has_ceil(op: Op) -> bool:
    return bool(op.maybe_int("ceil_mode"))


def _all_pads(
    op: Op, x: Tensor, box: Window, has_ceil: bool
) -> tuple[list[HostInt], list[HostInt]]:
    """Return the padding of every axis; rounding the windows up pads the end further."""
    ends = list(box.ends)
    for axis in range(box.rank if has_ceil else 0):
        extent = (box.kernel[axis] - 1) * box.dilations[axis] + 1
        stride = box.strides[axis]
        padded = box.begins[axis] + op.graph.dim(x, axis + 2) + box.ends[axis]
        windows = ceil_div(padded - extent, stride) + 1
        # A window may not start behind the input.
        inside = (padded - box.ends[axis] - 1) // stride + 1
        ends[axis] = ends[axis] + (sym_min(windows, inside) - 1) * stride + extent - padded
    return [0, 0, *box.begins], [0, 0, *ends]


def _in_whole(op: Op, index: torch.fx.Node) -> torch.fx.Node:
    """Turn places in a feature map into places in the whole input, which is in C order."""
    batch, channels, *sizes = op.dims(0)
    if op.version >= 8 and op.attr_int("storage_order"):
        index = _by_column(op, index, sizes)
    graph = op.graph
    maps = op.call(torch.arange, batch * channels, device=graph.device())
    first = op.call(operator.mul, maps, product(sizes))
    shape = [batch, channels, *(1,) * len(sizes)]
    return op.call(operator.add, index, op.call(torch.reshape, first, shape))


def _by_column(op: Op, index: torch.fx.Node, sizes: list[HostInt]) -> torch.fx.Node:
    """Count places with the first axis as the fastest one."""
    places = []
    for size in reversed(sizes):
        places.append(op.call(torch.remainder, index, size))
        index = op.call(torch.div, index, size, rounding_mode="floor")
    # The last axis comes first and is the slowest now.
    result, *rest = places
    for place, size in zip(rest, reversed(sizes[:-1]), strict=True):
        result = op.call(operator.add, op.call(operator.mul, result, size), place)
    return result


def _average_by_sums(op: Op, x: Tensor, box: Window, has_ceil: bool, include: bool) -> Tensor:
    """Divide window sums by window counts; takes any padding and dilation."""
    begins, ends = _all_pads(op, x, box, has_ceil)
    total = _window_sums(op, emit_constant_pad(op, x, begins, ends, 0.0), box)
    # Counted are the elements, and the padding that the node asks for where it is included.
    sizes = op.dims(0)[2:]
    first, last = (box.begins, box.ends) if include else ([0] * box.rank, [0] * box.rank)
    inner = [b + size + e for b, size, e in zip(first, sizes, last, strict=True)]
    ones = Tensor(op.method("new_ones", x, [1, 1, *inner]), x.dtype, (1, 1, *inner))
    rest = [
        [wanted - given for wanted, given in zip(side[2:], done, strict=True)]
        for side, done in ((begins, first), (ends, last))
    ]
    padded = emit_constant_pad(op, ones, [0, 0, *rest[0]], [0, 0, *rest[1]], 0.0)
    count = _window_sums(op, padded, box)
    return _pooled(x, op.call(operator.truediv, total, count))


def _window_sums(op: Op, padded: Tensor, box: Window) -> torch.fx.Node:
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


def _over_space(function: Callable[..., Any], *attributes: str) -> Callable[[Op], Tensor]:
    """Reduce every spatial axis to size 1."""

    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        axes = list(range(2, x.rank))
        node = op.call(function, x, *map(op.attr_int, attributes), axes, keepdim=True)
        return Tensor(node, x.dtype, (*x.dims[:2], *(1,) * len(axes)))

    return convert


converter("GlobalAveragePool", versions=(1, 22))(_over_space(torch.mean))
converter("GlobalMaxPool", versions=(1, 22))(_over_space(torch.amax))
converter("GlobalLpPool", versions=(2, 22))(_over_space(torch.linalg.vector_norm, "p"))
