"""Published peaks of GPUs: dense, tensor cores with sums in fp32, boost clock.

Of NVIDIA's data sheets and architecture white papers, halved where those count sparsity. fp32 is
without TF32, which engines of that precision do not use. A card that is not here counts as the
first of its generation.
"""

from typing import Final, NamedTuple

from services.contracts.hardware.kinds import Precision


class GpuPeak(NamedTuple):
    """One card: TFLOP/s by precision, 0 without instructions, and GB/s of its memory."""

    generation: str
    name: str
    fp32: float
    fp16: float
    bf16: float
    int8: float
    fp8: float
    gb_per_s: float

    @property
    def flops_per_s(self) -> dict[Precision, float]:
        """By precision; those without instructions are left out."""
        known = {each: getattr(self, each.value, 0.0) * 1e12 for each in Precision}
        # Computed with in fp32.
        known[Precision.INT8_WEIGHT_ONLY] = known[Precision.FP32]
        return {each: flops for each, flops in known.items() if flops}


# Names as the driver gives them contain these; of several the longest counts.
GPU_PEAKS: Final = (
    GpuPeak("cuda-sm70", "V100", 15.7, 125, 0, 62.8, 0, 900),
    GpuPeak("cuda-sm75", "T4", 8.1, 65, 0, 130, 0, 320),
    GpuPeak("cuda-sm80", "A100", 19.5, 312, 312, 624, 0, 1555),
    GpuPeak("cuda-sm80", "A100-SXM4-80GB", 19.5, 312, 312, 624, 0, 2039),
    GpuPeak("cuda-sm80", "A100 80GB PCIe", 19.5, 312, 312, 624, 0, 1935),
    GpuPeak("cuda-sm80", "A30", 10.3, 165, 165, 330, 0, 933),
    GpuPeak("cuda-sm86", "A10", 31.2, 125, 125, 250, 0, 600),
    GpuPeak("cuda-sm86", "A40", 37.4, 149.7, 149.7, 299.3, 0, 696),
    GpuPeak("cuda-sm89", "L4", 30.3, 121, 121, 242, 242, 300),
    GpuPeak("cuda-sm89", "L40S", 91.6, 362, 362, 733, 733, 864),
    GpuPeak("cuda-sm89", "RTX 4090", 82.6, 165.2, 165.2, 660.6, 330.3, 1008),
    GpuPeak("cuda-sm90", "H100", 66.9, 989.4, 989.4, 1978.9, 1978.9, 3350),
    GpuPeak("cuda-sm90", "H100 PCIe", 51.2, 756, 756, 1513, 1513, 2000),
    GpuPeak("cuda-sm90", "H200", 66.9, 989.4, 989.4, 1978.9, 1978.9, 4800),
    GpuPeak("cuda-sm100", "B200", 75, 2250, 2250, 4500, 4500, 7700),
    GpuPeak("cuda-sm120", "RTX 5090", 104.8, 209.5, 209.5, 838, 419, 1792),
    GpuPeak("cuda-sm120", "RTX PRO 6000", 125, 503.8, 503.8, 1007.6, 1007.6, 1792),
)


def published_peak(generation: str, name: str) -> GpuPeak | None:
    """The card that a device's name says, or else the first of its generation; None of no known."""
    known = [each for each in GPU_PEAKS if each.generation == generation]
    named = [each for each in known if each.name in name.replace("-", " ") or each.name in name]
    return max(named, key=lambda each: len(each.name)) if named else next(iter(known), None)
