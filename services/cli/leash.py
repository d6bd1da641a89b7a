"""Becomes another program that ends with its parent: `python -m services.cli.leash PID COMMAND…`.

For programs that are not ours, such as Prometheus: a supervisor that is killed leaves none.
"""

import os
import signal
import sys

from services.contracts.lifetime import end_with_parent


def main(argv: list[str]) -> None:
    """Tie this process to its parent, and become the command."""
    parent_pid, *command = argv
    # The kernel remembers it through the exec.
    end_with_parent(int(parent_pid), signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606 - the program that was asked for


if __name__ == "__main__":
    main(sys.argv[1:])
