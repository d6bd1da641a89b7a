"""GPUs that are split into slices (MIG): each slice is a device of its own, with its memory."""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

from services.engines.device.cuda_driver import opened_nvml

_UUID_BYTES = 96


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


def mig_devices() -> list[str]:
    """UUIDs of all slices of this host, and of its GPUs that have none; the smallest memory first.

    Empty where no GPU is split.
    """
    with opened_nvml() as nvml:
        if nvml is None:
            return []
        num_gpus = _count(nvml.nvmlDeviceGetCount_v2)
        gpus = list(_handles(nvml.nvmlDeviceGetHandleByIndex_v2, num_gpus))
        found = [device for gpu in gpus for device in _slices(nvml, gpu) or _whole(nvml, gpu)]
        uuids = [_uuid(nvml, each) for each in sorted(found, key=partial(_memory_bytes, nvml))]
    return uuids if any(map(is_mig, uuids)) else []


def is_mig(uuid: str) -> bool:
    """Whether a device is a slice."""
    return uuid.startswith("MIG-")


def _slices(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    most = _count(partial(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu))
    return list(_handles(partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu), most))


def _whole(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    """The GPU; nothing runs on one in MIG mode that has no slice."""
    later = ctypes.c_uint()
    is_split = _count(lambda now: nvml.nvmlDeviceGetMigMode(gpu, now, ctypes.byref(later)))
    return [] if is_split else [gpu]


def _handles(get: Callable[..., int], most: int) -> Iterator[ctypes.c_void_p]:
    for index in range(most):
        handle = ctypes.c_void_p()
        # A slice that was removed leaves its index free.
        if get(index, ctypes.byref(handle)) == 0:
            yield handle


def _count(get: Callable[..., int]) -> int:
    """What NVML counts; 0 where it knows of no such thing."""
    found = ctypes.c_uint()
    return 0 if get(ctypes.byref(found)) else found.value


def _uuid(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_UUID_BYTES)
    nvml.nvmlDeviceGetUUID(device, buffer, _UUID_BYTES)
    return buffer.value.decode()


def _memory_bytes(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> int:
    found = _Memory()
    nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(found))
    return int(found.total)
