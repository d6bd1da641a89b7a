"""Whether other buckets are worth the engines that they have built and proven anew."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.cli.sizes.best_shapes import Shape
from services.cli.sizes.bucket_advice import SizeCounts

# Of the requests, that would run at another shape: a few may be one client's.
_LEAST_MOVED = 0.02
# Of the time, or of what is computed where nothing was timed: measured times differ by that much.
_LEAST_SAVED = 0.05


def share_moved(seen: SizeCounts, now: Sequence[Shape], proposed: Sequence[Shape]) -> float:
    """The share of requests that would run at another size, or with other rows.

    Args:
        seen: sizes of one dimension.
        now: shapes of today's buckets; larger requests count as the largest.
        proposed: of the others.
    """
    moved = sum(
        count for size, count in seen.counts.items() if _held(now, size) != _held(proposed, size)
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


def _held(shapes: Sequence[Shape], size: int) -> list[Shape]:
    """Those of the smallest size that holds a request."""
    sizes = [shape.size for shape in shapes]
    edge = min((each for each in sizes if each >= size), default=max(sizes))
    return [shape for shape in shapes if shape.size == edge]
