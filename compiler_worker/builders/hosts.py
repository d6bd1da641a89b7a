"""What this machine is, as far as builders need it."""

from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import Generation, Platform
from services.engines.device.device_probe import probe_device


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
