"""How much memory something takes: resident on the host, allocated on a CUDA device."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.contracts.hardware import Platform

_KIB = 1024


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


def peak_resident_bytes() -> int:
    """The most resident memory that this process ever had.

    The kernel's high-water mark of the program itself: getrusage would also count what the
    parent held when it forked.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    return 0


def _used_bytes(platform: Platform) -> int:
    if platform is Platform.CPU:
        import psutil

        return int(psutil.Process().memory_info().rss)
    import torch

    # Other libraries than torch allocate too, so the device is asked, and torch's own peak
    # is added where it has given memory back since.
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    given_back = torch.cuda.max_memory_allocated() - torch.cuda.memory_reserved()
    return int(total - free) + max(0, given_back)
