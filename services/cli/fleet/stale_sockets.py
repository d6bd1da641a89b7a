"""Removes unix sockets that killed processes left: replicas of a joined cluster outlive a fleet."""

import socket
from pathlib import Path


def remove_stale_sockets(folder: Path) -> None:
    """Unlink each socket of replicas that no process listens on; what is in use stays."""
    for path in folder.glob("*.sock"):
        if path.is_socket() and _is_stale(path):
            path.unlink(missing_ok=True)


def _is_stale(path: Path) -> bool:
    """Whether the kernel lists no listener; a process id in a name may be another's by now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener whose queue is full must not be waited for.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
