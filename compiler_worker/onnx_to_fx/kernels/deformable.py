"""Convolution whose window is bent by an input (DeformConv).

Legend: N = batch, C = channels, O = groups of offsets, K = window elements, L = places of the
output, M = output channels, G = groups.
"""

from __future__ import annotations

import torch

from compiler_worker.onnx_to_fx.kernels.bilinear import corners_with_zeros, pixels


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
