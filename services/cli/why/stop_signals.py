"""Ctrl-C and SIGTERM as something to wait for, in place of an exception anywhere."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits so many seconds for a stop signal, and returns whether one came.

    It returns at once when a signal comes or came before. For the main thread.
    """
    # Not a threading.Event: a handler that sets one may wait for a lock that this very thread
    # holds.
    stop_fd = os.eventfd(0)
    before = {
        number: signal.signal(number, lambda *_: os.eventfd_write(stop_fd, 1))
        for number in _SIGNALS
    }
    try:
        yield lambda timeout_s: bool(select.select([stop_fd], [], [], timeout_s)[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(stop_fd)
