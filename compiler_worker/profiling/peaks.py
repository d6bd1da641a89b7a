"""What this machine reaches: a matrix product and a copy, measured beside what is judged by them.

Peaks of a data sheet do not hold for a machine that is shared, nor for a part of its threads.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from compiler_worker.profiling.profile_report import Peaks

_NUM_TRIES = 5
# Sides of the matrices, and bytes of the copied tensor: enough to leave the caches.
_SIDE = {"cpu": 1536, "cuda": 8192}
_COPIED_BYTES = {"cpu": 2**28, "cuda": 2**30}


def measured_peaks(device: str, dtype: torch.dtype) -> Peaks:
    """The best of a few tries of each."""
    side = _SIDE[device]
    num_bytes = _COPIED_BYTES[device]
    left = torch.ones(side, side, device=device, dtype=dtype)
    source = torch.ones(num_bytes, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    product_s = _best_s(lambda: left @ left, device)
    copy_s = _best_s(lambda: target.copy_(source), device)
    return Peaks(
        # A multiplication and an addition for each term.
        flops_per_s=2 * side**3 / product_s,
        bytes_per_s=2 * num_bytes / copy_s,
        measured_by=(
            f"best of {2 * _NUM_TRIES}: {side} x {side} matrix product in "
            f"{str(dtype).removeprefix('torch.')}, copy of {num_bytes // 2**20} MiB "
            "(read and written)"
        ),
    )


def _best_s(call: Callable[[], Any], device: str) -> float:
    call()
    return min(timed_s(call, device) for _ in range(_NUM_TRIES))


def timed_s(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call, until the device is done with it."""
    _finish(device)
    started = time.perf_counter()
    call()
    _finish(device)
    return time.perf_counter() - started


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
