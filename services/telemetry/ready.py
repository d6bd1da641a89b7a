"""How a process notifies its parent that it serves: one JSON line on an inherited pipe.

The parent blocks on the pipe, so it is notified of readiness and of the end: the line
arrives, or the pipe closes because the child is gone.
"""

import json
import os
import select
from contextlib import suppress
from typing import Any

from services.contracts.errors import NotReadyError
from services.telemetry.child_log import ChildLog


def announce_ready(ready_fd: int, document: dict[str, Any]) -> None:
    """Write one line and close the pipe; does nothing for a negative descriptor.

    A parent that waits no more is no fault of this process.
    """
    if ready_fd < 0:
        return
    with suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as pipe:
        pipe.write(json.dumps(document) + "\n")


def wait_ready(
    read_fd: int, timeout_s: float, what: str, log: ChildLog | None = None
) -> dict[str, Any]:
    """Wait for a child's line and close the pipe.

    Args:
        read_fd: the pipe's other end.
        timeout_s: how long.
        what: the child, for people.
        log: where it writes; None for our own standard error.

    Raises:
        NotReadyError: the child ended first, or the time ran out; with the reason and its log.
    """
    with os.fdopen(read_fd) as pipe:
        readable, _, _ = select.select([pipe], [], [], timeout_s)
        if not readable:
            raise NotReadyError(
                late_words(what, timeout_s) + (f"; its log: {log.path}" if log else "")
            )
        line = pipe.readline()
    # The end of the pipe: the child holds the only other end, and has ended.
    if not line:
        raise NotReadyError(f"{what}: ended before it was ready{_why(log)}")
    document: dict[str, Any] = json.loads(line)
    return document


def late_words(what: str, timeout_s: float) -> str:
    """That a child took too long to start, and the setting that gives it longer."""
    return (
        f"{what}: not ready within {timeout_s:g} s; a slow or busy host may need longer: "
        "SMELT_START_TIMEOUT_S"
    )


def _why(log: ChildLog | None) -> str:
    if log is None:
        return "; the reason is on its standard error"
    words = log.last_words() or "it printed nothing"
    # A child that cannot write its log is silent for that reason, and ended for it, perhaps.
    fault = log.write_fault()
    return f": {words}" + (f", as {fault}" if fault else f"; its log: {log.path}")
