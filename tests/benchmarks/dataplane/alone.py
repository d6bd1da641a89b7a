"""Gives the measured processes a machine with nothing else to do, for as long as a cell runs."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain

import psutil

from tests.benchmarks.dataplane.servers import Servers


def alone(
    servers: Servers, payload: str, client: int, seconds: float, *, is_real_time: bool
) -> AbstractContextManager[None]:
    """One cell's client and servers before all others of the machine, if asked for.

    Takes root: the processes run as SCHED_RR meanwhile.
    """
    if not is_real_time:
        return nullcontext()
    return preferred([*chain(*servers.pids[payload].values()), client], seconds)


@contextmanager
def preferred(pids: Sequence[int], seconds: float) -> Iterator[None]:
    """Lets no other process run beside these; then rests for as long."""
    _schedule(pids, os.SCHED_RR, 1)
    try:
        yield
    finally:
        _schedule(pids, os.SCHED_OTHER, 0)
        # Not a wait for an event: other processes have the time that was taken from them.
        time.sleep(seconds)


def _schedule(pids: Sequence[int], policy: int, priority: int) -> None:
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            # A thread may have ended since.
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread.id, policy, os.sched_param(priority))
