"""Ops that read an image at places which are data: regions, bent windows, affine grids.

Legend: N = batch, C = channels, O = groups of offsets, K = window elements, L = places of the
output, M = output channels, G = groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.kernels.bilinear import corners_with_zeros, pixels
from compiler_worker.onnx_to_fx.kernels.roi_align import roi_align
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor


# Not ONNX's own body: that makes shapes of values, which fixes the sizes.
@converter("AffineGrid", versions=(20,))
def convert_affine_grid(op: Op) -> Tensor:
    """Sampling places [N, *spatial, axes] of the affine maps theta [N, axes, axes + 1].

    Raises UnsupportedGraphError for other than 2 or 3 axes, and for corners of an axis of size 1.
    """
    theta = op.tensor(0)
    size = op.ints(1)
    align_corners = bool(op.attr_int("align_corners"))
    if len(size) not in (4, 5):
        raise op.refuse(f"the size has {len(size)} axes, wanted 4 or 5")
    if align_corners and 1 in size[2:]:
        raise op.refuse("an axis of size 1 has no two corners to align")
    node = op.call(affine_grid, theta, size[2:], align_corners)
    return Tensor(node, theta.dtype, (size[0], *size[2:], len(size) - 2))


@converter("RoiAlign", versions=(10, 16, 22))
def convert_roi_align(op: Op) -> Tensor:
    """Pool each region [x1, y1, x2, y2] of x [N, C, H, W] to one size.

    Raises UnsupportedGraphError for another mode or transformation of coordinates.
    """
    x = op.tensor(0)
    rois = op.tensor(1)
    batch_indices = op.tensor(2)
    # Before version 16 pixels lay at whole numbers.
    shifts = ("half_pixel", "output_half_pixel", "")
    shift = op.choice("coordinate_transformation_mode", shifts) if op.version >= 16 else ""
    mode = op.choice("mode", ("avg", "max"))
    size = (op.attr_int("output_height"), op.attr_int("output_width"))
    node = op.call(
        roi_align,
        x,
        rois,
        batch_indices,
        size,
        op.attr_int("sampling_ratio"),
        op.attr_float("spatial_scale"),
        shift == "half_pixel",
        mode == "max",
    )
    return Tensor(node, x.dtype, (rois.dims[0], x.dims[1], *size))


@converter("DeformConv", versions=(19, 22))
def convert_deform_conv(op: Op) -> Tensor:
    """Convolve x [N, C, H, W] at places moved by the offsets.

    Raises UnsupportedGraphError for other than 2 spatial axes, and for 16-bit floats.
    """
    x = op.tensor(0)
    weight = op.tensor(1)
    offset = op.tensor(2)
    if x.rank != 4:
        raise op.refuse(f"{x.rank - 2} spatial axes are not translated, wanted 2")
    if x.dtype not in (torch.float32, torch.float64):
        raise op.refuse("places in 16-bit floats are not translated")
    node = op.call(
        deform_conv,
        x,
        weight,
        offset,
        op.maybe(3),
        op.maybe(4),
        op.maybe_ints("strides") or [1, 1],
        (op.maybe_ints("pads") or [0, 0])[:2],
        op.maybe_ints("dilations") or [1, 1],
        (op.attr_int("group"), op.attr_int("offset_group")),
    )
    return Tensor(node, x.dtype, (x.dims[0], weight.dims[0], *offset.dims[2:]))


def affine_grid(theta: torch.Tensor, sizes: Sequence[int], align_corners: bool) -> torch.Tensor:
    """Return where each element of an image of the given sizes is mapped to.

    Args:
        theta: maps [N, axes, axes + 1].
        sizes: spatial sizes, outermost first.
        align_corners: whether -1 and 1 are the centres of the corner elements; else they
            are the outer edges.

    Returns:
        [N, *sizes, axes]; coordinates are innermost first, from -1 to 1.
    """
    axes = len(sizes)
    # The last column moves all of the image alike.
    total = theta[:, :, axes].reshape([-1, *(1,) * axes, axes])
    for axis, size in enumerate(sizes):
        step = torch.arange(size, dtype=theta.dtype, device=theta.device) * 2
        place = step / (size - 1) - 1 if align_corners else (step + 1) / size - 1
        column = place.reshape([1, *(-1 if a == axis else 1 for a in range(axes)), 1])
        factor = theta[:, :, axes - 1 - axis].reshape([-1, *(1,) * axes, axes])
        total = total + column * factor
    return total


def deform_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    strides: list[int],
    begins: list[int],
    dilations: list[int],
    groups: tuple[int, int],
) -> torch.Tensor:
    """Convolve x [N, C, height, width] at places moved by offset.

    Args:
        x: images.
        weight: [M, C / G, *kernel].
        offset: rows and columns to add to each window element's place [N, O * K * 2, *output].
        bias: [M].
        mask: factor of each window element [N, O * K, *output].
        strides: steps between windows.
        begins: padding before the first row and column.
        dilations: steps within a window.
        groups: G and O.
    """
    kernel = weight.shape[2:]
    output = offset.shape[2:]
    count = kernel[0] * kernel[1]
    group, offset_group = groups
    batch = x.shape[0]
    offset_NO_K2L = offset.reshape(batch * offset_group, count, 2, -1)
    places = []
    for axis in (0, 1):
        inside = torch.arange(kernel[axis], device=x.device) * dilations[axis]
        inside_K = inside.reshape([-1, 1] if axis == 0 else [1, -1]).expand(*kernel).reshape(-1)
        start = torch.arange(output[axis], device=x.device) * strides[axis] - begins[axis]
        start_L = start.reshape([-1, 1] if axis == 0 else [1, -1]).expand(*output).reshape(-1)
        place = offset_NO_K2L[:, :, axis] + (inside_K.unsqueeze(1) + start_L)
        places.append(place.flatten(1))
    images = x.reshape(batch * offset_group, -1, *x.shape[2:])
    sampled = images.new_zeros([])
    for row, column, part in corners_with_zeros(places[0], places[1], *x.shape[2:]):
        sampled = sampled + pixels(images, row, column) * part.unsqueeze(1)
    if mask is not None:
        sampled = sampled * mask.reshape(batch * offset_group, 1, -1)
    columns_NGCL = sampled.reshape(batch, group, -1, output[0] * output[1])
    weight_GMC = weight.reshape(group, weight.shape[0] // group, -1)
    result = torch.matmul(weight_GMC, columns_NGCL).reshape(batch, -1, *output)
    return result if bias is None else result + bias.reshape(-1, 1, 1)
