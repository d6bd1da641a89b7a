"""Non-maximum suppression: the best boxes of each class, without those too close to a better one.

Each step takes the best open box of every class at once and closes what overlaps it, so the
number of steps is that of the class with the most boxes.

Legend: B = batch, C = classes, N = boxes.
"""

from __future__ import annotations

import torch

from compiler_worker.onnx_to_fx.kernels.while_loop import while_loop


def non_max_suppression(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    max_per_class: int | torch.Tensor,
    iou_threshold: float | torch.Tensor,
    score_threshold: float | torch.Tensor | None,
    is_centred: bool,
) -> torch.Tensor:
    """Return [selected, 3]: batch, class and box, per class from the best box down.

    Args:
        boxes: [B, N, 4]; corners y, x, y, x in either order, or centre x, y, width, height.
        scores: [B, C, N]; of two equal ones the first is better.
        max_per_class: most boxes of one class; a whole number.
        iou_threshold: overlap, intersection over union, above which a box is dropped.
        score_threshold: score that a box must exceed; None lets all in.
        is_centred: whether boxes are given by their centres.
    """
    corners_BN4 = _corners(boxes, is_centred)
    threshold = _tensor(iou_threshold, boxes)
    order = torch.sort(scores, dim=-1, descending=True, stable=True)[1]
    # A box's place in the order is the inverse of the permutation.
    rank = torch.sort(order, dim=-1)[1]
    limit = _tensor(max_per_class, order)
    never = torch.iinfo(torch.int64).max
    is_open = torch.ones_like(scores, dtype=torch.bool)
    if score_threshold is not None:
        is_open = scores > _tensor(score_threshold, scores)

    def is_unfinished(
        step: torch.Tensor, is_open: torch.Tensor, *rest: torch.Tensor
    ) -> torch.Tensor:
        return (step < rest[-1]) & is_open.any()

    def body(
        step: torch.Tensor, is_open: torch.Tensor, taken_at: torch.Tensor, *rest: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        corners, rank, threshold, _ = rest
        best_BC1 = torch.where(is_open, rank, never).argmin(-1, keepdim=True)
        places = torch.arange(rank.shape[2], device=rank.device)
        is_best = (places == best_BC1) & is_open
        near = _overlaps(corners, best_BC1.squeeze(2), threshold)
        # A class without open boxes has no best one; nothing of it is open to be closed.
        return step + 1, is_open & ~near & ~is_best, torch.where(is_best, step, taken_at)

    start = torch.zeros((), dtype=torch.int64, device=scores.device)
    carried = (start, is_open, torch.full_like(rank, never))
    constants = (corners_BN4, rank, threshold, limit)
    _, _, taken_at = while_loop(is_unfinished, body, carried, constants)
    in_order = torch.sort(taken_at, dim=-1, stable=True)
    batch, kind, place = (in_order[0] < never).nonzero().unbind(1)
    return torch.stack([batch, kind, in_order[1][batch, kind, place]], 1)


def _tensor(value: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.reshape(())
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _corners(boxes: torch.Tensor, is_centred: bool) -> torch.Tensor:
    """Return low and high corners of boxes [B, N, 4]."""
    first = boxes[..., :2]
    second = boxes[..., 2:]
    if is_centred:
        return torch.cat([first - second / 2, first + second / 2], -1)
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], -1)


def _overlaps(
    corners_BN4: torch.Tensor, best_BC: torch.Tensor, threshold: torch.Tensor
) -> torch.Tensor:
    """Whether each box overlaps its class's best one by more than the threshold: [B, C, N]."""
    index = best_BC.unsqueeze(2).expand(-1, -1, 4)
    best_BC14 = corners_BN4.gather(1, index).unsqueeze(2)
    all_B1N4 = corners_BN4.unsqueeze(1)
    low = torch.maximum(all_B1N4[..., :2], best_BC14[..., :2])
    high = torch.minimum(all_B1N4[..., 2:], best_BC14[..., 2:])
    # Positive too where both extents are negative, so `meets` checks the corners as well.
    shared = (high - low).prod(-1)
    area, best_area = (
        (corners[..., 2:] - corners[..., :2]).prod(-1) for corners in (all_B1N4, best_BC14)
    )
    union = area + best_area - shared
    meets = (high > low).all(-1) & (shared > 0) & (area > 0) & (best_area > 0) & (union > 0)
    return meets & (shared / union > threshold)
