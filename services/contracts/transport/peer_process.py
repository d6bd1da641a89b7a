"""The process at the other end of a unix socket, as the kernel names it, and its open files."""

import os
import socket
import struct
from typing import Final

# Process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")
# A descriptor may be a pipe's, whose opening would wait for its other end.
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK


def peer_process(connection: socket.socket) -> int:
    """The id of that process; 0 where it has none here: over a network, or of other namespaces."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process: int = _CREDENTIALS.unpack(found)[0]
    return process


def open_peers_file(connection: socket.socket, descriptor: int, flags: int) -> int:
    """Open what that process has open, whatever its name is by now; a descriptor of our own.

    Args:
        connection: the unix socket.
        descriptor: of the other process.
        flags: `os.O_RDONLY` or `os.O_RDWR`.

    Raises:
        OSError: it has no such file, or this process may not open it: the kernel lets processes of
            one user do so.
    """
    return os.open(f"/proc/{peer_process(connection)}/fd/{descriptor}", flags | _FLAGS)
