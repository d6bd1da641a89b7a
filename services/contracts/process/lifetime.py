"""A child process that ends with its parent, however the parent ends."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when its parent ends; 0 does nothing.

    The parent is the thread that started this process: it must run as long as the parent.
    """
    if parent_pid <= 0:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:  # it ended before the call of prctl
        os.kill(os.getpid(), signum)
