"""`smelt down`: stop the local fleet and wait for its end."""

import os
import select
import signal
from contextlib import suppress

from services.cli.fleet.fleet_file import supervisor_pid
from services.cli.output.show import show
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError

# Gateway, controller and what is left on a joined cluster, each with a time limit of its own.
STOP_TIMEOUT_S = 180.0


def run_down(settings: CliSettings) -> None:
    """Ask the supervisor to stop; returns when it is gone.

    Raises:
        NotFoundError: no fleet runs or starts here.
        NotReadyError: it did not end in time.
    """
    pid = supervisor_pid(settings.run_dir)
    if not _end(pid):
        raise NotReadyError(
            f"process {pid} did not end within {STOP_TIMEOUT_S:g} s; its logs: {settings.run_dir}"
        )
    show({"stopped": pid}, [f"stopped (process {pid})"])


def _end(pid: int) -> bool:
    """Send SIGTERM and wait; whether the process is gone."""
    try:
        # Not the id, which another process may have by the time of the signal.
        pid_fd = os.pidfd_open(pid)
    except ProcessLookupError:  # it ended while we looked
        return True
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pid_fd, signal.SIGTERM)
        ended, _, _ = select.select([pid_fd], [], [], STOP_TIMEOUT_S)
    finally:
        os.close(pid_fd)
    return bool(ended)
