"""What a large request's memory costs: a slot of an arena that stays mapped, or a memfd of its own.

A memfd for each request, handed over by SCM_RIGHTS, would let a replica see its own requests alone.
Both ends run in this process, so that its processor time is that of gateway and replica together:
the request is written once, as from the network, and read once, as by an engine.

    python -m tests.benchmarks.dataplane.request_fds
"""

import mmap
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

_SIZES = (65_536, 602_112, 4 << 20, 16 << 20)
_REPEATS, _SECONDS = 7, 0.2


def _in_a_slot(arena: mmap.mmap, request: np.ndarray) -> int:
    slot = np.frombuffer(arena, np.uint8, request.size)
    slot[:] = request
    return int(slot.view(np.uint64).sum())


def _in_a_memfd(ends: tuple[socket.socket, socket.socket], request: np.ndarray) -> int:
    fd = os.memfd_create("request", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, request.size)
        os.pwrite(fd, request.data, 0)  # fewer page faults than through a mapping
        socket.send_fds(ends[0], [b"x"], [fd])
    finally:
        os.close(fd)
    _, (taken,), _, _ = socket.recv_fds(ends[1], 1, 1)
    with mmap.mmap(taken, request.size, prot=mmap.PROT_READ) as memory:
        os.close(taken)
        seen = np.frombuffer(memory, np.uint64)
        total = int(seen.sum())
        del seen
    return total


def _cpu_us(ask: Callable[[], int]) -> float:
    """Processor time of one request, in microseconds."""
    num, ends_s, begin_s = 0, time.perf_counter() + _SECONDS, time.process_time()
    while time.perf_counter() < ends_s:
        ask()
        num += 1
    return 1e6 * (time.process_time() - begin_s) / num


def main() -> None:
    """Print a row for each size, sides alternating."""
    arena = mmap.mmap(-1, 32 << 20)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    print("| request | slot, us | memfd, us | times |\n|---|---|---|---|")
    for size in _SIZES:
        request = np.ones(size, np.uint8)
        sides: tuple[list[float], list[float]] = ([], [])
        for _ in range(_REPEATS):
            sides[0].append(_cpu_us(partial(_in_a_slot, arena, request)))
            sides[1].append(_cpu_us(partial(_in_a_memfd, ends, request)))
        slot, memfd = map(statistics.median, sides)
        print(f"| {size:,} | {slot:.1f} | {memfd:.1f} | {memfd / slot:.1f} |")


if __name__ == "__main__":
    main()
