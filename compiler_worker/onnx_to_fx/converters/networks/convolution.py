"""Convolutions and their transposes."""

import operator

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.networks.windows import SPATIAL_RANKS, Window, window
from compiler_worker.onnx_to_fx.converters.tensors.layout import emit_constant_pad
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import Tensor

_CONV = dict(
    zip(SPATIAL_RANKS, (functional.conv1d, functional.conv2d, functional.conv3d), strict=True)
)
_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def kernel_sizes(op: Op, weight: Tensor) -> list[HostInt]:
    """Return the kernel's spatial sizes from the attribute or the weight."""
    given = op.maybe_ints("kernel_shape")
    return (
        [*given]
        if given is not None
        else [op.graph.dim(weight, axis) for axis in range(2, weight.rank)]
    )


@converter("Conv", versions=(1, 11, 22))
def conv(op: Op) -> Tensor:
    """Convolution of x [N, C, *spatial] with weight [M, C / group, *kernel]."""
    return emit_conv(op, op.tensor(0), op.tensor(1), op.maybe(2))


def emit_conv(op: Op, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Emit a convolution with the window that the node's attributes describe.

    Args:
        op: the node.
        x: [N, C, *spatial].
        weight: [M, C / group, *kernel].
        bias: [M].

    Raises:
        UnsupportedGraphError: no input channels, or more than 3 spatial axes.
    """
    box = window(op, x, kernel_sizes(op, weight))
    padding = box.symmetric_padding()
    if padding is None:
        x = emit_constant_pad(op, x, [0, 0, *box.begins], [0, 0, *box.ends], 0.0)
        padding = [0] * box.rank
    group = op.attr_int("group")
    if weight.dims[1] == 0:
        raise op.refuse("it has no input channels, and torch then gives no output channels")
    node = op.call(_CONV[box.rank], x, weight, bias, box.strides, padding, box.dilations, group)
    return Tensor(node, x.dtype, (x.dims[0], weight.dims[0], *(None,) * box.rank))


@converter("ConvTranspose", versions=(1, 11, 22))
def conv_transpose(op: Op) -> Tensor:
    """Transposed convolution of x [N, C, *spatial] with weight [C, M / group, *kernel].

    Raises UnsupportedGraphError for more than 3 spatial axes.
    """
    x = op.tensor(0)
    weight = op.tensor(1)
    bias = op.maybe(2)
    rank = x.rank - 2
    if rank not in SPATIAL_RANKS:
        raise op.refuse(f"{rank} spatial axes are not translated, wanted 1 to 3")
    kernel = kernel_sizes(op, weight)
    strides = op.maybe_ints("strides") or [1] * rank
    dilations = op.maybe_ints("dilations") or [1] * rank
    extra = op.maybe_ints("output_padding") or [0] * rank
    # Of a kernel with its gaps.
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [
        (op.graph.dim(x, axis + 2) - 1) * strides[axis] + extents[axis] + extra[axis]
        for axis in range(rank)
    ]
    begins, ends = _cropping(op, x, full, strides)
    box = Window(kernel, strides, dilations, begins, ends)
    return _emit_transposed(op, (x, weight, bias), box, extra, full)


def _emit_transposed(
    op: Op,
    operands: tuple[Tensor, Tensor, Tensor | None],
    box: Window,
    extra: list[int],
    full: list[HostInt],
) -> Tensor:
    x, weight, bias = operands
    group = op.attr_int("group")
    padding = box.symmetric_padding()
    # torch bounds the extra rows by stride and dilation, and pads both sides alike.
    fits = all(e < max(s, d) for e, s, d in zip(extra, box.strides, box.dilations, strict=True))
    function = _TRANSPOSED[box.rank]
    per_group = weight.static[1]
    channels = None if per_group is None else per_group * group
    dims = (x.dims[0], channels, *(None,) * box.rank)
    if padding is not None and fits and min(padding, default=0) >= 0:
        node = op.call(function, x, weight, bias, box.strides, padding, extra, group, box.dilations)
        return Tensor(node, x.dtype, dims)
    if any(extra):
        raise op.refuse("output_padding with padding that differs between sides")
    added = [not isinstance(end, Sym) and end < 0 for end in box.ends]
    # Rows added behind the result hold the bias too, so it comes after them.
    early, late = (None, bias) if any(added) else (bias, None)
    node = op.call(
        function, x, weight, early, box.strides, [0] * box.rank, extra, group, box.dilations
    )
    for axis, (begin, end) in enumerate(zip(box.begins, box.ends, strict=True)):
        if added[axis]:
            sides = [0] * (2 * (box.rank - axis - 1)) + [0, operator.neg(end)]
            node = op.call(functional.pad, node, sides)
        else:
            node = op.call(torch.narrow, node, axis + 2, begin, full[axis] - begin - end)
    if late is not None:
        column = op.call(torch.reshape, late, [-1, *(1,) * box.rank])
        node = op.call(operator.add, node, column)
    return Tensor(node, x.dtype, dims)


def _cropping(
    op: Op, x: Tensor, full: list[HostInt], strides: list[int]
) -> tuple[list[HostInt], list[HostInt]]:
    """Return what to cut from the front and the back of the full result."""
    rank = len(full)
    auto = op.attr_str("auto_pad")
    wanted: list[HostInt] = list(op.maybe_ints("output_shape") or [])
    if not wanted and auto in ("NOTSET", "VALID"):
        pads = op.maybe_ints("pads") if auto == "NOTSET" else None
        pads = pads or [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    if not wanted:
        wanted = [op.graph.dim(x, axis + 2) * strides[axis] for axis in range(rank)]
    totals = [size - target for size, target in zip(full, wanted[-rank:], strict=True)]
    missing = [-total for total in totals if not isinstance(total, Sym) and total < 0]
    # Runtimes agree on where one row more goes, to the end, and on nothing beyond.
    if missing and (max(missing) > 1 or auto != "NOTSET"):
        raise op.refuse("output_shape is larger than the convolution's full result")
    smaller = [total // 2 for total in totals]
    larger = [operator.sub(total, half) for total, half in zip(totals, smaller, strict=True)]
    # ONNX's formula: an odd row is cut from the end for SAME_UPPER, else from the start, for
    # NOTSET too.
    return (smaller, larger) if auto == "SAME_UPPER" else (larger, smaller)
