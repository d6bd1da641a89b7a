"""How busy a GPU is with the work of all processes, by NVML."""

import ctypes

from services.engines.device.cuda_driver import opened_nvml

_BUS_ID_BYTES = 32
_FULL = 100.0


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sample, a sixth of a second to a second."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def gpu_busy_share() -> float | None:
    """The share of time in which a kernel ran on the first device that this process sees.

    None without a driver, a device, or a GPU that is counted: NVML has no such figure for MIG.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    bus_id = ctypes.create_string_buffer(_BUS_ID_BYTES)
    # By its address: NVML counts devices that CUDA_VISIBLE_DEVICES hides.
    if cuda.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device):
        return None
    with opened_nvml() as nvml:
        return _busy_share(nvml, bus_id) if nvml else None


def _busy_share(nvml: ctypes.CDLL, bus_id: ctypes.Array[ctypes.c_char]) -> float | None:
    device = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(device)):
        return None
    found = _Utilization()
    if nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(found)):
        return None
    return float(found.gpu) / _FULL
