"""Images from windows, unpooled maxima, and crops around the centre."""

from __future__ import annotations

import operator

import torch

from compiler_worker.onnx_to_fx.converters.layout import emit_constant_pad
from compiler_worker.onnx_to_fx.dtypes import WIDE_UNSIGNED
from compiler_worker.onnx_to_fx.kernels.patches import col2im
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.sym import HostInt, product, sym_max
from compiler_worker.onnx_to_fx.values import Tensor


@converter("Col2Im", versions=(18,), attributes=("dilations", "pads", "strides"))
def convert_col2im(op: Op) -> Tensor:
    """Add up windows [N, C * elements, windows] where they overlap."""
    x, image, kernel = op.tensor(0), op.ints(1), op.static_ints(2)
    rank = len(kernel)
    if len(image) != rank:
        raise op.refuse(f"a window of {rank} axes for an image of {len(image)}")
    strides, dilations = op.maybe_ints("strides"), op.maybe_ints("dilations")
    pads = op.maybe_ints("pads") or [0] * (2 * rank)
    node = op.call(
        col2im,
        x,
        image,
        kernel,
        strides or [1] * rank,
        pads[:rank],
        pads[rank:],
        dilations or [1] * rank,
    )
    return Tensor(node, x.dtype, (x.dims[0], None, *image))


@converter("MaxUnpool", versions=(9, 11, 22), attributes=("kernel_shape", "pads", "strides"))
def max_unpool(op: Op) -> Tensor:
    """Put each maximum where MaxPool took it from, zeros elsewhere."""
    x, index = op.tensor(0), op.tensor(1)
    kernel = op.maybe_ints("kernel_shape") or []
    rank, dims = len(kernel), op.dims(0)
    if x.rank != rank + 2:
        raise op.refuse(f"a window of {rank} axes for an input of rank {x.rank}")
    strides = op.maybe_ints("strides") or [1] * rank
    pads = op.maybe_ints("pads") or [0] * (2 * rank)
    sizes = dims[:2] + [
        (dims[axis + 2] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis]
        for axis in range(rank)
    ]
    zeros = op.method("new_zeros", x, [product(sizes)])
    flat_index, flat = op.method("reshape", index, [-1]), op.method("reshape", x, [-1])
    scattered = op.call(torch.scatter, zeros, 0, flat_index, flat)
    y = Tensor(op.call(torch.reshape, scattered, sizes), x.dtype, tuple(sizes))
    if not op.has(2):
        return y
    # The indices count in the size that the window gives; the rest is zeros at the end.
    wanted = op.ints(2)
    ends = [target - size for target, size in zip(wanted, sizes, strict=True)]
    return emit_constant_pad(op, y, [0] * x.rank, ends, 0)


@converter("CenterCropPad", versions=(18,), attributes=("axes",), carried=WIDE_UNSIGNED)
def center_crop_pad(op: Op) -> Tensor:
    """Cut or pad axes to given sizes, the same on both sides or one more at the end."""
    x, wanted = op.tensor(0), op.ints(1)
    given = op.maybe_ints("axes")
    axes = list(range(x.rank)) if given is None else [op.axis(axis, x.rank) for axis in given]
    if len(axes) != len(wanted):
        raise op.refuse(f"{len(wanted)} sizes for {len(axes)} axes")
    for axis, target in zip(axes, wanted, strict=True):
        if op.graph.dim(x, axis) != target:
            x = _centred(op, x, axis, target)
    return x


def _centred(op: Op, x: Tensor, axis: int, target: HostInt) -> Tensor:
    """Pick elements around the centre; zeros where the axis is too short.

    Slices would have to know while exporting whether the axis grows or shrinks.
    """
    size = op.graph.dim(x, axis)
    # Half of what is cut, or of what is missing, rounded toward the front.
    shift = sym_max(size - target, 0) // 2 - sym_max(target - size, 0) // 2
    place = op.call(torch.arange, target, device=op.graph.device())
    place = op.call(operator.add, place, shift)
    index = op.call(torch.clamp, place, 0, size - 1)
    picked = op.call(torch.index_select, x, axis, index)
    inside = op.call(torch.eq, place, index)
    inside = op.call(torch.reshape, inside, [-1] + [1] * (x.rank - axis - 1))
    node = op.call(torch.where, inside, picked, op.call(torch.zeros_like, picked))
    return Tensor(node, x.dtype, (*x.dims[:axis], target, *x.dims[axis + 1 :]))
