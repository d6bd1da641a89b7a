"""Whether other buckets are worth the engines that they have built and proven anew."""

from collections.abc import Iterable, Mapping
from typing import Any

from services.cli.sizes.best_shapes import Shape
from services.cli.sizes.bucket_advice import SizeCounts

# Of the requests, that would run at another shape: a few may be one client's.
_LEAST_MOVED = 0.02
# Of the time, or of what is computed where nothing was timed: measured times differ by that much.
_LEAST_SAVED = 0.05


def rows_by_size(shapes: Iterable[Shape]) -> dict[int, list[int]]:
    """The rows of the shapes of each size."""
    rows: dict[int, list[int]] = {}
    for shape in shapes:
        rows.setdefault(shape.size, []).append(shape.rows)
    return rows


def share_moved(
    seen: SizeCounts, now: Mapping[int, object], proposed: Mapping[int, object]
) -> float:
    """The share of requests that would run at another size, or with other rows.

    Args:
        seen: sizes of one dimension.
        now: rows of today's buckets, by largest size; larger requests count as the largest.
        proposed: of the others.
    """
    moved = sum(
        count for size, count in seen.counts.items() if _shape(now, size) != _shape(proposed, size)
    )
    return moved / seen.num_requests


def kept_words(dim: str, advice: Mapping[str, Any], *, is_padded: bool) -> str:
    """Why today's buckets of a dimension are kept, with the figures; "" where others pay.

    Args:
        dim: whose sizes were seen.
        advice: of `buckets`, on this dimension.
        is_padded: whether requests share batches with longer ones, or some padding was measured.
    """
    if not is_padded:
        return (
            f"{dim}: today's buckets are kept, as nothing is padded: no input has role: mask in "
            "the recipe, so each request runs at its own length"
        )
    if advice["is_exact"]:
        return (
            f"{dim}: {advice['measured_on']} computes requests at their own sizes: today's buckets "
            "are kept, as others, which it would be tuned for and proven at, spare it no padding"
        )
    saved = 1 - 1 / advice["speedup"]
    if advice["moved"] >= _LEAST_MOVED and saved >= _LEAST_SAVED:
        return ""
    what = "time" if advice["measured_on"] else "computation"
    return (
        f"{dim}: today's buckets are good: better ones would run {advice['moved']:.1%} of the "
        f"requests at another shape and save {max(saved, 0.0):.1%} of the {what}; they are "
        f"proposed from {_LEAST_MOVED:.0%} and {_LEAST_SAVED:.0%} on"
    )


def _shape(rows: Mapping[int, object], size: int) -> tuple[int, object]:
    edge = min((edge for edge in rows if edge >= size), default=max(rows))
    return edge, rows[edge]
