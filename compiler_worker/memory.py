"""How much memory something takes: resident on the host, allocated on a CUDA device."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from compiler_worker.host_memory import host_memory
from services.contracts.hardware.facts import Platform

_KIB = 1024
_FORGET_PEAK = Path("/proc/self/clear_refs")


@dataclass
class Growth:
    """Filled in when the measured block ends.

    Attributes:
        num_bytes: what the block added and still holds, at least 0.
    """

    num_bytes: int = 0


@contextmanager
def memory_growth(platform: Platform) -> Iterator[Growth]:
    """Measure what a block that loads and runs something adds to this process.

    On the host that is resident memory, so libraries must be imported before: their code
    is not what an engine takes. Memory that was freed earlier may be used again unseen.
    """
    growth = Growth()
    gc.collect()
    before = _used_bytes(platform)
    yield growth
    growth.num_bytes = max(0, _used_bytes(platform) - before)


@contextmanager
def memory_peak(platform: Platform) -> Iterator[Growth]:
    """Measure the most that a block adds to this process while it runs, given back or not."""
    growth = Growth()
    read_peak_bytes = _peak_from_now(platform)
    before = _used_bytes(platform)
    yield growth
    growth.num_bytes = max(0, read_peak_bytes() - before)


def peak_resident_bytes() -> int:
    """The most resident memory that this process ever had.

    The kernel's high-water mark of the program itself: getrusage would also count what the
    parent held when it forked.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    return 0


def has_room_for(num_bytes: int) -> bool:
    """Whether the memory of this host holds so many bytes of weights twice, as a session may."""
    return 2 * num_bytes <= host_memory().available_bytes


def _peak_from_now(platform: Platform) -> Callable[[], int]:
    """Reset the peak; returns what reads the one since."""
    read_used_bytes = partial(_used_bytes, platform)
    if platform is Platform.CUDA:
        import torch

        torch.cuda.reset_peak_memory_stats()
        return read_used_bytes
    try:
        _FORGET_PEAK.write_text("5")
    except OSError:  # not every kernel has it; what a block frees is then not seen
        return read_used_bytes
    return peak_resident_bytes


def _used_bytes(platform: Platform) -> int:
    if platform is Platform.CPU:
        import psutil

        return int(psutil.Process().memory_info().rss)
    import torch

    # Other libraries than torch allocate too, so the device is queried, and torch's own peak
    # is added where it has given memory back since.
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    given_back = torch.cuda.max_memory_allocated() - torch.cuda.memory_reserved()
    return int(total - free) + max(0, given_back)
