"""What this machine is, as far as builders need it."""

from typing import Final

from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import Generation, Platform
from services.engines.device.device_probe import probe_device

# The least that vector code is compiled for: it runs on every processor from AVX2 on.
PORTABLE_CPU: Final = Generation.parse("cpu-x86_64-v3")


def local_generation(platform: Platform) -> Generation | None:
    """The generation of this machine's device; None when it has none of that platform."""
    try:
        return probe_device(platform).parsed_generation
    except NotFoundError:
        return None


def foreign_cuda_reason(generation: Generation) -> str:
    """Why an engine of a CUDA generation cannot be built here, or ""."""
    local = local_generation(Platform.CUDA)
    if local == generation:
        return ""
    return (
        f"it must be built on a {generation} device; this machine has {local or 'no CUDA device'}"
    )


def foreign_cpu_reason(generation: Generation) -> str:
    """Why vector code for a CPU generation cannot be compiled here, or ""."""
    if not PORTABLE_CPU.runs_on(generation):
        return f"vector code needs x86-64 with AVX2; {generation} has none"
    local = local_generation(Platform.CPU)
    if generation not in (PORTABLE_CPU, local):
        # With AVX-512 compilers use every extension that they find on the building machine.
        return f"AVX-512 code must be built on {generation}; this machine is {local}"
    if local is None or not generation.runs_on(local):
        return f"this machine is {local} and cannot try code for {generation}"
    return ""
