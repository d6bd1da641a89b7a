"""Images from windows, and unpooled maxima."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.tensors.layout import emit_constant_pad
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import product
from compiler_worker.onnx_to_fx.values import Tensor


@converter("Col2Im", versions=(18,))
def convert_col2im(op: Op) -> Tensor:
    """Add up windows [N, C * elements, windows] where they overlap.

    Raises UnsupportedGraphError where window and image differ in rank.
    """
    x = op.tensor(0)
    image = op.ints(1)
    kernel = op.static_ints(2)
    rank = len(kernel)
    if len(image) != rank:
        raise op.refuse(f"a window of {rank} axes for an image of {len(image)}")
    strides = op.maybe_ints("strides")
    dilations = op.maybe_ints("dilations")
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


@converter("MaxUnpool", versions=(9, 11, 22))
def max_unpool(op: Op) -> Tensor:
    """Put each maximum at the place that MaxPool found it at, zeros elsewhere.

    Raises UnsupportedGraphError where window and input differ in rank.
    """
    x = op.tensor(0)
    index = op.tensor(1)
    kernel = op.maybe_ints("kernel_shape") or []
    rank = len(kernel)
    dims = op.dims(0)
    if x.rank != rank + 2:
        raise op.refuse(f"a window of {rank} axes for an input of rank {x.rank}")
    strides = op.maybe_ints("strides") or [1] * rank
    pads = op.maybe_ints("pads") or [0] * (2 * rank)
    sizes = dims[:2] + [
        (dims[axis + 2] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis]
        for axis in range(rank)
    ]
    zeros = op.method("new_zeros", x, [product(sizes)])
    flat_index = op.method("reshape", index, [-1])
    flat = op.method("reshape", x, [-1])
    scattered = op.call(torch.scatter, zeros, 0, flat_index, flat)
    y = Tensor(op.call(torch.reshape, scattered, sizes), x.dtype, tuple(sizes))
    if not op.has(2):
        return y
    # The indices count in the size that the window gives; the rest is zeros at the end.
    wanted = op.ints(2)
    ends = [target - size for target, size in zip(wanted, sizes, strict=True)]
    return emit_constant_pad(op, y, [0] * x.rank, ends, 0)


def col2im(
    columns: torch.Tensor,
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    dilations: Sequence[int],
) -> torch.Tensor:
    """Add up windows where they overlap: [N, C, *image].

    Args:
        columns: [N, C * elements, windows]; elements are those of one window.
        image: sizes of the result, one per spatial axis, as all that follow.
        kernel: sizes of a window.
        strides: between windows.
        begins: padding before each axis, cut off again.
        ends: padding after each axis.
        dilations: between elements of a window.
    """
    padded = [sum(sizes) for sizes in zip(image, begins, ends, strict=True)]
    place = torch.zeros([], dtype=torch.int64, device=columns.device)
    rank = len(kernel)
    elements = 1
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        windows = (padded[axis] - extent) // strides[axis] + 1
        element = torch.arange(kernel[axis], device=columns.device) * dilations[axis]
        start = torch.arange(windows, device=columns.device) * strides[axis]
        # Axes of the index: window elements first, then windows.
        element = element.reshape([-1 if a == axis else 1 for a in range(2 * rank)])
        start = start.reshape([-1 if a == rank + axis else 1 for a in range(2 * rank)])
        place = place * padded[axis] + element + start
        elements *= kernel[axis]
    parts = torch.unflatten(columns, 1, [-1, elements]).flatten(2)
    total = padded[0]
    for size in padded[1:]:
        total = total * size
    whole = parts.new_zeros([parts.shape[0], parts.shape[1], total])
    result = torch.unflatten(whole.index_add(2, place.reshape(-1), parts), 2, padded)
    for axis in range(rank):
        result = result.narrow(axis + 2, begins[axis], image[axis])
    return result
