"""NonMaxSuppression for ONNX's reference implementation, which compares boxes pair by pair.

That takes the minutes of a whole build for the 20,000 boxes of an SSD, and this seconds.
"""

import numpy as np
from onnx.reference.op_run import OpRun

from services.contracts.kserve.tensors import Array


class NonMaxSuppression(OpRun):
    """Per class, boxes from the best score down, without those that overlap a better one."""

    def _run(
        self,
        boxes: Array,
        scores: Array,
        max_output_boxes_per_class: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
        *,
        center_point_box: int = 0,
    ) -> tuple[Array]:
        """Boxes [N, B, 4] with scores [N, C, B]: indices [.., 3] of batch, class and box."""
        most = _number(max_output_boxes_per_class, 0)
        overlap = _number(iou_threshold, 0.0)
        corners = _corners(boxes, is_center=bool(center_point_box))
        selected = [
            (batch, label, box)
            for batch, classes in enumerate(scores)
            for label, row in enumerate(classes)
            for box in _kept(corners[batch], row, most, overlap, score_threshold)
        ]
        return (np.array(selected, dtype=np.int64).reshape(-1, 3),)


def _number(given: Array | None, default: float) -> float:
    return default if given is None or not given.size else given.ravel()[0]


def _corners(boxes: Array, *, is_center: bool) -> Array:
    """Least and largest of both sides: [N, B, 2, 2]."""
    first = boxes[..., :2]
    second = boxes[..., 2:]
    if is_center:
        half = second / 2
        second = first + half
        first = first - half
    return np.stack([np.minimum(first, second), np.maximum(first, second)], axis=-2)


def _kept(
    corners_B22: Array, scores_B: Array, most: float, overlap: float, threshold: Array | None
) -> list[int]:
    # Of equal scores the first one, as in ONNX Runtime.
    order = np.argsort(-scores_B, kind="stable")
    if threshold is not None and threshold.size:
        order = order[scores_B[order] > threshold.ravel()[0]]
    kept: list[int] = []
    while order.size and len(kept) < most:
        kept.append(int(order[0]))
        rest = order[1:]
        order = rest[_overlaps(corners_B22[order[0]], corners_B22[rest]) <= overlap]
    return kept


def _overlaps(one_22: Array, others_B22: Array) -> Array:
    """Intersection over union; 0 where one of both is empty."""
    low = np.maximum(one_22[0], others_B22[:, 0])
    high = np.minimum(one_22[1], others_B22[:, 1])
    common = np.clip(high - low, 0, None).prod(axis=-1)
    area = (one_22[1] - one_22[0]).prod()
    union = area + (others_B22[:, 1] - others_B22[:, 0]).prod(axis=-1) - common
    found: Array = np.divide(common, union, out=np.zeros_like(common), where=common > 0)
    return found
