"""How a process tells its parent that it serves: one JSON line on an inherited pipe.

The parent blocks on the pipe, so it learns of readiness and of death as events: the line
arrives, or the pipe closes because the child is gone.
"""

import json
import os
import select
from contextlib import suppress
from typing import Any

from services.contracts.errors import NotReadyError


def announce_ready(ready_fd: int, document: dict[str, Any]) -> None:
    """Write one line and close the pipe; does nothing for a negative descriptor.

    A parent that waits no more is no fault of this process.
    """
    if ready_fd < 0:
        return
    with suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as pipe:
        pipe.write(json.dumps(document) + "\n")


def wait_ready(read_fd: int, timeout_s: float, what: str) -> dict[str, Any]:
    """Wait for a child's line and close the pipe.

    Raises:
        NotReadyError: the child ended first, or the time ran out.
    """
    with os.fdopen(read_fd) as pipe:
        readable, _, _ = select.select([pipe], [], [], timeout_s)
        if not readable:
            raise NotReadyError(f"{what}: not ready within {timeout_s:g} s")
        line = pipe.readline()
    if not line:
        raise NotReadyError(f"{what}: ended before it was ready; its log says why")
    document: dict[str, Any] = json.loads(line)
    return document
