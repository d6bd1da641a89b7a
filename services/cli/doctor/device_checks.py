"""Devices, instructions and engine kinds of this host."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.install_commands import fix_of, pip_command
from services.contracts.hardware.facts import X86_ISA_FLAGS, DeviceFacts, Platform
from services.contracts.hardware.kinds import EngineKind, Precision

_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_NAMES: Final = {
    "v3": "AVX2",
    "avx512": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx": "AMX",
}


def check_devices(pci_devices: Path = _PCI_DEVICES) -> Iterator[Finding]:
    """The processor, and each GPU that the driver shows."""
    from services.engines.device.cuda_driver import cuda_devices
    from services.engines.device.device_probe import cuda_facts, probe_device

    cpu = probe_device(Platform.CPU)
    yield Finding(check="processor", found=f"{_words(cpu)}, {os.cpu_count()} cores")
    gpus = [cuda_facts(device) for device in cuda_devices()]
    for number, gpu in enumerate(gpus):
        yield Finding(check=f"GPU {number}", found=f"{_words(gpu)}, driver {gpu.driver}")
    if gpus:
        yield _torch_for_gpus(gpus[0].toolchain.get("torch", ""))
    elif _has_nvidia(pci_devices):
        yield Finding(
            check="GPU",
            level=Level.WARNING,
            found="an NVIDIA device is present, but no driver reports it",
            wanted="libcuda.so.1 and a device that it reports",
            fix="install NVIDIA's driver; start a container with --gpus all",
        )
    else:
        yield Finding(check="GPU", found="none: engines here are for the processor")


def check_instructions() -> Iterator[Finding]:
    """Instructions of an x86 processor that engines are made for."""
    from services.engines.device.device_probe import cpu_flags

    yield instructions_finding(cpu_flags())


def instructions_finding(flags: frozenset[str]) -> Finding:
    """Which classes of instructions there are; `flags` as the kernel has them."""
    if not flags:
        return Finding(check="instructions", found="unknown: not an x86 machine")
    has = {isa: X86_ISA_FLAGS[isa] <= flags for isa in _NAMES}
    there = ", ".join(name for isa, name in _NAMES.items() if has[isa])
    lacks = ", ".join(name for isa, name in _NAMES.items() if not has[isa])
    found = "; not ".join(filter(None, (there or "none", lacks)))
    level = Level.OK if has["v3"] else Level.WARNING
    wanted = "" if has["v3"] else "AVX2: without it kind inductor builds nothing"
    return Finding(check="instructions", level=level, found=found, wanted=wanted)


def check_kinds() -> Iterator[Finding]:
    """What each engine kind can be built in for the device that serves here."""
    from compiler_worker.builders.select import builder_for
    from compiler_worker.devices import local_devices, main_device

    generation = main_device(local_devices()).parsed_generation
    for kind in EngineKind:
        builder = builder_for(kind)
        reasons = {each: builder.unavailable_reason(generation, each) for each in Precision}
        yield kind_finding(kind, reasons)


def kind_finding(kind: EngineKind, reasons: dict[Precision, str]) -> Finding:
    """What a kind lacks; `reasons` say by precision why it is not built, "" where it is."""
    built = ", ".join(each for each, reason in reasons.items() if not reason)
    lacking = {reason: fix for reason in reasons.values() if (fix := fix_of(reason))}
    if not lacking:
        # In none: what this device is not for.
        return Finding(check=kind, found=built or next(iter(reasons.values())))
    reason, fix = next(iter(lacking.items()))
    found = f"{built}; {reason}" if built else reason
    return Finding(check=kind, level=Level.WARNING, found=found, fix=fix)


def _torch_for_gpus(version: str) -> Finding:
    if not version.endswith("+cpu"):
        return Finding(check="torch", found=version or "not installed")
    return Finding(
        check="torch",
        level=Level.WARNING,
        found=f"{version}, which computes on processors alone",
        wanted="its build for CUDA: fallback and kind inductor use it",
        fix=pip_command(f"--force-reinstall torch=={version.removesuffix('+cpu')}"),
    )


def _has_nvidia(pci_devices: Path) -> bool:
    return any(
        (folder / "vendor").read_text().strip() == _NVIDIA
        and (folder / "class").read_text().startswith(_DISPLAY)
        for folder in pci_devices.glob("*")
    )


def _words(facts: DeviceFacts) -> str:
    return f"{facts.generation}: {facts.name}, {facts.memory_gib} GiB"
