"""Becomes another program that ends with its parent: `python -m ... PID COMMAND…`.

For programs that are not ours, such as Prometheus: `smelt up` that is killed leaves none running.
"""

import os
import signal
import sys

from services.contracts.process.lifetime import end_with_parent


def main(argv: list[str]) -> None:
    """Ask the kernel for a signal at the parent's death, and become the command."""
    parent_pid, *command = argv
    # The kernel keeps it across the exec.
    end_with_parent(int(parent_pid), signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606 - the program that was asked for


if __name__ == "__main__":
    main(sys.argv[1:])
