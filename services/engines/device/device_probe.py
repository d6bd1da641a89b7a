"""What device this process has: generation, name, memory, driver and toolchain.

The generation is read from the device (compute capability, cpuid flags), never from its
name. `override` is the one seam to simulate another generation, in tests and local fleets:
a settings value passed down as an argument; everything else stays what was found.
"""

import platform as host_platform
from dataclasses import dataclass
from pathlib import Path

from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import DeviceFacts, Generation, Platform, x86_isa_class
from services.engines.device.cuda_driver import CudaDevice, first_cuda_device
from services.engines.device.toolchain import installed_toolchain

_GIB = 2**30
_KIB = 2**10


@dataclass(frozen=True, kw_only=True)
class HostFiles:
    """Where the kernel describes the host; another folder in tests."""

    cpuinfo: Path = Path("/proc/cpuinfo")
    meminfo: Path = Path("/proc/meminfo")


def probe_device(
    platform: Platform | None = None, override: str | None = None, files: HostFiles | None = None
) -> DeviceFacts:
    """Facts of this process's device: the first CUDA device, the CPU when there is none.

    Args:
        platform: only this platform; None takes CUDA where it exists.
        override: a generation to report in place of the detected one.
        files: the kernel's files to read.

    Raises:
        NotFoundError: CUDA was asked for and there is no driver or device.
        InvalidRequestError: the override is no generation, or the processor is too old.
    """
    if override:
        return _overridden(Generation.parse(override), files or HostFiles())
    device = None if platform is Platform.CPU else first_cuda_device()
    if device is not None:
        return cuda_facts(device)
    if platform is Platform.CUDA:
        raise NotFoundError("no CUDA device: libcuda.so.1 is missing or shows no device")
    return _cpu_facts(files or HostFiles())


def _overridden(generation: Generation, files: HostFiles) -> DeviceFacts:
    # What is not simulated stays real: memory and driver are of the device that will run.
    device = first_cuda_device() if generation.platform is Platform.CUDA else None
    facts = cuda_facts(device) if device else _cpu_facts(files)
    # Of the simulated platform: engines for it are compared with these versions.
    toolchain = installed_toolchain(generation.platform)
    return facts.model_copy(update={"generation": str(generation), "toolchain": toolchain})


def cuda_facts(device: CudaDevice) -> DeviceFacts:
    """Facts of a CUDA device of this process."""
    generation = Generation(platform=Platform.CUDA, major=device.major, minor=device.minor)
    return DeviceFacts(
        generation=str(generation),
        name=device.name,
        memory_gib=round(device.memory_bytes / _GIB),
        driver=device.driver,
        toolchain=installed_toolchain(Platform.CUDA),
    )


def _cpu_facts(files: HostFiles) -> DeviceFacts:
    info = _cpuinfo(files.cpuinfo)
    return DeviceFacts(
        generation=str(_cpu_generation(info)),
        # Linux gives no `model name` for processors of Arm.
        name=info.get("model name", host_platform.machine()),
        memory_gib=round(_memory_bytes(files.meminfo) / _GIB),
        toolchain=installed_toolchain(Platform.CPU),
    )


def cpu_flags(files: HostFiles | None = None) -> frozenset[str]:
    """The processor's flags by the kernel's names; of x86 alone."""
    return _flags(_cpuinfo((files or HostFiles()).cpuinfo))


def _flags(info: dict[str, str]) -> frozenset[str]:
    return frozenset(info.get("flags", "").split())


def _cpu_generation(info: dict[str, str]) -> Generation:
    machine = host_platform.machine()
    is_x86 = machine == "x86_64"
    # Other machines have no table of classes yet: all of one machine count as one.
    isa = x86_isa_class(_flags(info)) if is_x86 else "generic"
    return Generation(platform=Platform.CPU, machine=machine, isa=isa)


def _cpuinfo(path: Path) -> dict[str, str]:
    """Fields of the first processor; all processors of a host are alike."""
    first, _, _ = path.read_text().partition("\n\n")
    return _fields(first)


def _memory_bytes(path: Path) -> int:
    return int(_fields(path.read_text())["MemTotal"].split()[0]) * _KIB


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
