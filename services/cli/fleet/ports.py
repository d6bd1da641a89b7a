"""Whether a port of this host can be had, found before anything is started for it."""

import errno
import socket

from services.contracts.errors import InvalidRequestError


def is_free(address: str, host: str) -> bool:
    """Whether `host:port` can be listened on, and is of that host."""
    own, _, port = address.rpartition(":")
    try:
        require_free(int(port), "", host)
    except (InvalidRequestError, ValueError):
        return False
    return own == host


def require_free(port: int, option: str, host: str = "127.0.0.1") -> None:
    """Refuse a port that another process listens on.

    Args:
        port: 0, which takes any, is always free.
        option: that chooses the port, for the message.
        host: address that the port is to be bound to.

    Raises:
        InvalidRequestError: names the port and the option that chooses another.
    """
    with socket.socket() as probe:
        # As servers do: a former server's connections in TIME_WAIT do not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"is refused: {error}"
            raise InvalidRequestError(
                f"port {port} of {host} {why}; choose another with {option}, 0 takes a free one"
            ) from error
