"""Pooling of regions of images (RoiAlign).

Legend: N = images, C = channels, R = regions, H, W = size of the output, P = H * W.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from compiler_worker.onnx_to_fx.kernels.bilinear import corners_at_edges, pixels
from compiler_worker.onnx_to_fx.kernels.while_loop import while_loop

# Each region's image, and by region and axis where bins start, their extent and their samples.
_Bins: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def roi_align(
    image: torch.Tensor,
    rois: torch.Tensor,
    batch_indices: torch.Tensor,
    size: tuple[int, int],
    sampling_ratio: int,
    spatial_scale: float,
    has_half_pixel: bool,
    is_max: bool,
) -> torch.Tensor:
    """Return the mean, or ONNX's maximum, of samples of every bin: [R, C, H, W].

    Args:
        image: [N, C, height, width].
        rois: x1, y1, x2, y2 of each region [R, 4].
        batch_indices: image of each region [R].
        size: H and W.
        sampling_ratio: samples of a bin along each axis; 0 for one per pixel, rounded up.
        spatial_scale: size of the image relative to what the regions are given in.
        has_half_pixel: whether pixels lie at half numbers; regions are at least 1 x 1 if not.
        is_max: whether a bin's value is the largest weighted neighbour of any sample.
    """
    # Places in 16 bits would be off by pixels.
    wide = torch.promote_types(rois.dtype, torch.float32)
    scaled = rois.to(wide) * spatial_scale - (0.5 if has_half_pixel else 0.0)
    start_R2 = scaled[:, :2].flip(1)
    end_R2 = scaled[:, 2:].flip(1)
    extent_R2 = end_R2 - start_R2 if has_half_pixel else (end_R2 - start_R2).clamp(min=1.0)
    bin_R2 = extent_R2 / torch.tensor(size, dtype=wide, device=rois.device)
    if sampling_ratio > 0:
        count_R2 = torch.full_like(bin_R2, sampling_ratio)
    else:
        count_R2 = bin_R2.ceil().clamp(min=0)
    regions = image.index_select(0, batch_indices.to(torch.int64))
    bins = (regions, start_R2, bin_R2, count_R2)
    pooled = regions.new_zeros([rois.shape[0], image.shape[1], size[0] * size[1]])
    if sampling_ratio > 0:
        for k in range(sampling_ratio * sampling_ratio):
            step = torch.full((), k, dtype=torch.int64, device=rois.device)
            pooled = _with_sample(step, pooled, bins, size, is_max)
    else:
        pooled = _adaptive(pooled, bins, size, is_max)
    if not is_max:
        pooled = pooled / count_R2.prod(1).clamp(min=1).to(pooled.dtype).reshape(-1, 1, 1)
    return torch.unflatten(pooled, 2, size)


def _adaptive(
    pooled: torch.Tensor, bins: _Bins, size: tuple[int, int], is_max: bool
) -> torch.Tensor:
    """Add samples until the region with the most of them has all."""

    def has_more(step: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return (step < rest[-1].prod(1)).any()

    def body(step: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pooled, regions, start_R2, bin_R2, count_R2 = rest
        bins = (regions, start_R2, bin_R2, count_R2)
        return step + 1, _with_sample(step, pooled, bins, size, is_max)

    first = torch.zeros((), dtype=torch.int64, device=pooled.device)
    _, last = while_loop(has_more, body, (first, pooled), bins)
    return last


def _with_sample(
    step: torch.Tensor,
    pooled_RCP: torch.Tensor,
    bins: _Bins,
    size: tuple[int, int],
    is_max: bool,
) -> torch.Tensor:
    """Add sample `step` of each bin, counted row by row; regions with fewer stay as they are."""
    regions, start_R2, bin_R2, count_R2 = bins
    along_R = count_R2[:, 1].clamp(min=1)
    row_R = (step / along_R).floor()
    sample_R2 = torch.stack([row_R, step - row_R * along_R], 1) + 0.5
    offset_R2 = start_R2 + sample_R2 * bin_R2 / count_R2.clamp(min=1)
    places = [
        offset_R2[:, axis : axis + 1]
        + torch.arange(size[axis], device=step.device) * bin_R2[:, axis : axis + 1]
        for axis in (0, 1)
    ]
    y_RP = places[0].unsqueeze(2).expand(-1, -1, size[1]).flatten(1)
    x_RP = places[1].unsqueeze(1).expand(-1, size[0], -1).flatten(1)
    parts = [
        pixels(regions, row, column) * weight.unsqueeze(1).to(regions.dtype)
        for row, column, weight in corners_at_edges(y_RP, x_RP, *regions.shape[2:])
    ]
    has_sample = (step < count_R2.prod(1)).reshape(-1, 1, 1)
    if not is_max:
        return pooled_RCP + torch.where(has_sample, sum(parts[1:], parts[0]), 0.0)
    best = torch.stack(parts).amax(0)
    best = torch.where(step == 0, best, torch.maximum(pooled_RCP, best))
    return torch.where(has_sample, best, pooled_RCP)
