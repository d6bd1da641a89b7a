"""Ops that read an image at places which are data: regions, bent windows, affine grids."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.kernels.deformable import deform_conv
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
