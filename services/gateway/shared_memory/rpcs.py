"""The RPCs about shared memory, by their names."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from google.protobuf.message import Message

from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.pb import open_inference_v2_pb2 as pb

REGISTER: Final = "SystemSharedMemoryRegister"
UNREGISTER: Final = "SystemSharedMemoryUnregister"


def region_changes(
    regions: SharedMemoryRegions,
) -> dict[str, Callable[[Any], Awaitable[Message]]]:
    """Those that change regions, which all workers of a gateway have in common."""
    return {REGISTER: regions.register, UNREGISTER: regions.unregister}


def shared_memory_methods(
    regions: SharedMemoryRegions,
) -> dict[str, Callable[[Any], Awaitable[Message]]]:
    """All that are offered where shared memory is switched on."""
    return region_changes(regions) | {
        "SystemSharedMemoryStatus": regions.status,
        "CudaSharedMemoryUnregister": _unregister_cuda,
    }


async def _unregister_cuda(
    _: pb.CudaSharedMemoryUnregisterRequest,
) -> pb.CudaSharedMemoryUnregisterResponse:
    """Nothing is registered: load generators clear both kinds of memory before they use one."""
    return pb.CudaSharedMemoryUnregisterResponse()
