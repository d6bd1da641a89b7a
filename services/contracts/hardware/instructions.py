"""Which generations have instructions for products in a precision. Pure, and from vendors' manuals.

Without them a precision is emulated, and slower than fp32; or, as of bytes before VNNI, two
products are added in sixteen bits, which overflow.
"""

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import Precision

# The first class of x86-64, and what it has that the ones before it lack.
_X86 = {
    Precision.BF16: ("avx512_bf16", "AVX512_BF16 or AMX"),
    Precision.INT8: ("avx512_vnni", "AVX512_VNNI"),
}
# The first compute capability whose tensor cores take it.
_CUDA = {
    Precision.FP16: (7, 0),
    Precision.BF16: (8, 0),
    Precision.INT8: (7, 5),
    Precision.FP8: (8, 9),
}
# Both are computed with in fp32.
_NEEDS_NONE = (Precision.FP32, Precision.INT8_WEIGHT_ONLY)


def missing_instructions(generation: Generation, precision: Precision) -> str:
    """Why a generation is no good at a precision, or ""."""
    if precision in _NEEDS_NONE:
        return ""
    words = f"{generation} has no {precision} instructions"
    if generation.platform is Platform.CUDA:
        major, minor = _CUDA[precision]
        has = (generation.major, generation.minor) >= (major, minor)
        return "" if has else f"{words}, which begin with SM {major}.{minor}"
    if generation.machine != "x86_64" or precision not in _X86:
        return f"{words} that Smelt knows of"
    isa, needed = _X86[precision]
    first = Generation(platform=Platform.CPU, machine="x86_64", isa=isa)
    return "" if first.runs_on(generation) else f"{words}: {needed} is needed"
