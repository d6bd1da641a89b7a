"""Processes that this one started, directly or not, and their end."""

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

import psutil


def descendants() -> list[psutil.Process]:
    """All that this process started; none where too many files are open to list them."""
    try:
        return psutil.Process().children(recursive=True)
    except (OSError, psutil.Error):
        return []


def pid_fds(processes: Iterable[psutil.Process], open_files: ExitStack) -> set[int]:
    """A file for each of these processes that can be had."""
    found = set()
    for process in processes:
        # It has ended, or too many files are open; the rest is to be stopped all the same.
        with suppress(OSError):
            found.add(pid_fd := os.pidfd_open(process.pid))
            open_files.callback(os.close, pid_fd)
    return found


def end(begun: set[int], linger_s: float) -> None:
    """Kill those that linger; one more signal to this process ends the waiting alone."""
    left = begun
    try:
        left = _still_running(begun, linger_s)
    finally:
        for pid_fd in left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pid_fd, signal.SIGKILL)


def _still_running(begun: set[int], timeout_s: float) -> set[int]:
    """Those that have not ended after a while; one that only waits to be reaped has.

    psutil waits until it is reaped, and the first process of a container may never do that.
    """
    until_s = time.monotonic() + timeout_s
    left = set(begun)
    poll = select.poll()
    for pid_fd in left:
        poll.register(pid_fd, select.POLLIN)
    while left and (left_s := until_s - time.monotonic()) > 0:
        for pid_fd, _ in poll.poll(left_s * 1000):
            poll.unregister(pid_fd)
            left.discard(pid_fd)
    return left
