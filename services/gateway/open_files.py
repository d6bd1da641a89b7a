"""How many files this process may have open, and how many of them its clients may take.

Without room of its own a gateway could not connect to a replica that was replaced, for as long as
clients keep their connections.
"""

import logging
import resource
from contextlib import suppress

logger = logging.getLogger(__name__)


def allow_most_files() -> None:
    """Raise this process's limit to the most that it may have: shells often begin with 1,024."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Beyond fs.nr_open, where that was lowered since, the kernel refuses it.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def most_connections(wanted: int, num_ports: int) -> int:
    """Of clients to each of the ports: as wanted, but three quarters of the files in all."""
    num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    possible = num_files * 3 // 4 // num_ports
    if num_files == resource.RLIM_INFINITY or wanted <= possible:
        return wanted
    logger.warning(
        "at most %d clients connect to each port, not %d: this process may open %d files; raise "
        "its limit (ulimit -n)",
        possible,
        wanted,
        num_files,
    )
    return possible
