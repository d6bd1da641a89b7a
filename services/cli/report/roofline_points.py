"""How near to its device's roofline each engine comes, from its timings and the master's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from services.cli.advise.roofline import BucketWork, DevicePeak, bucket_work, device_peak
from services.contracts.hardware.kinds import Precision

if TYPE_CHECKING:
    import onnx

    from services.contracts.hardware.facts import DeviceFacts

# Of a roof, which is a slope and a level.
_NUM_POINTS = 25


def roofline_points(
    model: onnx.ModelProto, sides: Sequence[Mapping[str, Any]], device: DeviceFacts
) -> dict[str, Any] | None:
    """Roofs by precision and points by side: FLOPs of a byte in fp32, and GFLOP/s.

    Args:
        model: the master.
        sides: with the shapes that they were timed at.
        device: that they were timed on.

    Returns:
        None where the peak is not known, or the graph has no products.
    """
    peak = device_peak(device.generation, device.name)
    shapes = {str(s["sizes"]): s["sizes"] for side in sides for s in side["shapes"]}
    works = {name: bucket_work(model, sizes) for name, sizes in shapes.items()}
    if peak is None or not any(work.flops and work.num_bytes for work in works.values()):
        return None
    points = {
        side["name"]: [
            (work.intensity, work.flops / shape["p50_s"] / 1e9)
            for shape in side["shapes"]
            if (work := works[str(shape["sizes"])]).intensity
        ]
        for side in sides
    }
    ridge = peak.flops_per_s[Precision.FP32] / peak.bytes_per_s
    found = [ridge, *(x for each in points.values() for x, _ in each)]
    known = (Precision(each) for each in dict.fromkeys(side["precision"] for side in sides))
    roofs = {
        precision: _roof(peak, precision, min(found) / 4, max(found) * 4)
        for precision in known
        if precision in peak.flops_per_s
    }
    return {"peak": peak.source, "roofs": roofs, "points": points}


def _roof(
    peak: DevicePeak, precision: Precision, low: float, high: float
) -> list[tuple[float, float]]:
    """GFLOP/s that are reached at most, between two intensities."""
    steps = [low * (high / low) ** (i / (_NUM_POINTS - 1)) for i in range(_NUM_POINTS)]
    least = ((x, peak.least_s(BucketWork({"": x}, 1.0, {}), precision)) for x in steps)
    return [(x, x / seconds / 1e9) for x, seconds in least if seconds]
