"""The user who runs this command, for events."""

import getpass
import os
import socket


def who_asks() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
