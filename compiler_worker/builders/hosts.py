"""What this machine is, as far as builders must know it."""

from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import Generation, Platform
from services.engines.device.device_probe import probe_device

_FIRST_WITH_BF16 = Generation.parse("cpu-x86_64-avx512_bf16")
# Emulated, bf16 is slower than fp32; before VNNI, two products of bytes are added in sixteen bits.
_FIRST_WITH_VNNI = Generation.parse("cpu-x86_64-avx512_vnni")


def local_generation(platform: Platform) -> Generation | None:
    """The generation of this machine's device; None when it has none of that platform."""
    try:
        return probe_device(platform).parsed_generation
    except NotFoundError:
        return None


def bf16_reason(generation: Generation) -> str:
    """Why bf16 makes no sense on a CPU generation, or ""."""
    if _FIRST_WITH_BF16.runs_on(generation):
        return ""
    return f"bf16 needs AVX512_BF16 or AMX; {generation} has neither and would emulate it"


def vnni_reason(generation: Generation) -> str:
    """Why products of eight-bit integers make no sense on a CPU generation, or ""."""
    if _FIRST_WITH_VNNI.runs_on(generation):
        return ""
    return f"int8 needs AVX512_VNNI; without it, as {generation}, sums of two products overflow"


def foreign_cuda_reason(generation: Generation) -> str:
    """Why an engine of a CUDA generation cannot be built here, or ""."""
    local = local_generation(Platform.CUDA)
    if local == generation:
        return ""
    return (
        f"it must be built on a {generation} device; this machine has {local or 'no CUDA device'}"
    )
