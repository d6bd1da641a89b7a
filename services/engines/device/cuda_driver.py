"""Facts of a CUDA device from the driver itself, through ctypes: no torch is imported."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

# CUdevice_attribute values of the driver API; they never change.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_NAME_BYTES = 256
# CUDA_ERROR_NOT_INITIALIZED
_NOT_INITIALISED = 3
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True)
class CudaDevice:
    """What the driver reports of one device.

    Attributes:
        major, minor: compute capability.
        memory_bytes: total device memory.
        driver: version of the kernel driver, for example 580.95.05; "" when unknown.
    """

    major: int
    minor: int
    name: str
    memory_bytes: int
    driver: str


def first_cuda_device() -> CudaDevice | None:
    """The first device that the driver shows this process, None without driver or device."""
    # Of those that CUDA_VISIBLE_DEVICES leaves: a replica sees its own devices alone.
    return next(cuda_devices(), None)


def cuda_devices() -> Iterator[CudaDevice]:
    """All devices that the driver shows this process; none without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    # As without a device: images have the library where the host has no driver for it.
    if cuda.cuInit(0) != 0:
        return
    device = ctypes.c_int()
    for index in count():
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            return
        yield _described(cuda, device)


def is_cuda_initialised() -> bool:
    """Whether this process has, which none of its forks could use."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return bool(cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALISED)


def _described(cuda: ctypes.CDLL, device: ctypes.c_int) -> CudaDevice:
    return CudaDevice(
        major=_attribute(cuda, _COMPUTE_CAPABILITY_MAJOR, device),
        minor=_attribute(cuda, _COMPUTE_CAPABILITY_MINOR, device),
        name=_name(cuda, device),
        memory_bytes=_memory_bytes(cuda, device),
        driver=driver_version(),
    )


def driver_version() -> str:
    """Version of the NVIDIA kernel driver: by NVML, else by /proc; "" without either."""
    return _nvml_driver_version() or _proc_driver_version()


def _attribute(cuda: ctypes.CDLL, attribute: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value


def _name(cuda: ctypes.CDLL, device: ctypes.c_int) -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    cuda.cuDeviceGetName(buffer, _NAME_BYTES, device)
    return buffer.value.decode()


def _memory_bytes(cuda: ctypes.CDLL, device: ctypes.c_int) -> int:
    value = ctypes.c_size_t()
    # Not the name without a suffix, which counts in 32 bits.
    cuda.cuDeviceTotalMem_v2(ctypes.byref(value), device)
    return value.value


@contextmanager
def opened_nvml() -> Iterator[ctypes.CDLL | None]:
    """NVML while the block runs; None without it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        nvml = None
    if nvml is None or nvml.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield nvml
    finally:
        # NVML counts its initialisations: each has a shutdown of its own.
        nvml.nvmlShutdown()


def _nvml_driver_version() -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    with opened_nvml() as nvml:
        if nvml is None or nvml.nvmlSystemGetDriverVersion(buffer, _NAME_BYTES) != 0:
            return ""
    return buffer.value.decode()


def _proc_driver_version() -> str:
    if not _DRIVER_FILE.exists():
        return ""
    # A sentence, in which the first number with a point is the version.
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _DRIVER_FILE.read_text())
    return match[1] if match else ""
