"""Published peaks of GPUs: dense, sums in fp32, boost clock; fp32 is without TF32.

Of NVIDIA's data sheets and architecture white papers, halved where those count sparsity. A card
that is not here counts as the first of its generation.
"""

from services.contracts.hardware.kinds import Precision

_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8, Precision.FP8)
# Generation; what the driver's name of it contains, blanks as _; TFLOP/s, 0 without instructions;
# and GB/s of its memory.
_CARDS = """
cuda-sm70  V100            15.7  125   0     62.8   0      900
cuda-sm75  T4              8.1   65    0     130    0      320
cuda-sm80  A100            19.5  312   312   624    0      1555
cuda-sm80  A100-SXM4-80GB  19.5  312   312   624    0      2039
cuda-sm80  A100_80GB_PCIe  19.5  312   312   624    0      1935
cuda-sm80  A30             10.3  165   165   330    0      933
cuda-sm86  A10             31.2  125   125   250    0      600
cuda-sm86  A40             37.4  149.7 149.7 299.3  0      696
cuda-sm89  L4              30.3  121   121   242    242    300
cuda-sm89  L40S            91.6  362   362   733    733    864
cuda-sm89  RTX_4090        82.6  165.2 165.2 660.6  330.3  1008
cuda-sm90  H100            66.9  989.4 989.4 1978.9 1978.9 3350
cuda-sm90  H100_PCIe       51.2  756   756   1513   1513   2000
cuda-sm90  H200            66.9  989.4 989.4 1978.9 1978.9 4800
cuda-sm100 B200            75    2250  2250  4500   4500   7700
cuda-sm120 RTX_5090        104.8 209.5 209.5 838    419    1792
cuda-sm120 RTX_PRO_6000    125   503.8 503.8 1007.6 1007.6 1792
"""


def published_peak(generation: str, name: str) -> tuple[str, dict[Precision, float], float] | None:
    """A card's name, FLOP/s by precision and bytes/s; None of a generation that is not here."""
    cards = [line.split() for line in _CARDS.split("\n") if line.startswith(f"{generation} ")]
    named = [card for card in cards if card[1].replace("_", " ") in name.replace("_", " ")]
    card = max(named, key=lambda each: len(each[1])) if named else next(iter(cards), None)
    if card is None:
        return None
    figures = [float(figure) for figure in card[2:]]
    flops = {p: 1e12 * each for p, each in zip(_PRECISIONS, figures, strict=False) if each}
    # These are computed with in fp32.
    flops[Precision.INT8_WEIGHT_ONLY] = flops[Precision.FP32]
    return card[1].replace("_", " "), flops, 1e9 * figures[-1]
