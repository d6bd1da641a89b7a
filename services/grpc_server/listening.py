"""Sockets to listen on: one for each address of a host's name."""

import errno
import socket
from typing import Final

# A name may have addresses of a family that this host does not support.
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listening_sockets(host: str, port: int, *, is_shared: bool) -> list[socket.socket]:
    """Bound sockets, all on the same port.

    Args:
        host: an address or a name; `[::]` and `::` are all addresses of the host, IPv4 too.
        port: 0 takes a free one.
        is_shared: other processes may listen on the port too.

    Raises:
        OSError: the port cannot be bound, or none of the addresses is of this host.
    """
    found = socket.getaddrinfo(
        host.removeprefix("[").removesuffix("]"),
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE,
    )
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        # Each once: a name may have an address twice, which binds only once.
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                bound.append(_bound(family, (address[0], port, *address[2:]), is_shared=is_shared))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                # Of port 0: all others get the one that the first was given.
                port = bound[0].getsockname()[1]
    except BaseException:
        close_sockets(bound)
        raise
    if missing and not bound:
        raise missing
    return bound


def close_sockets(sockets: list[socket.socket]) -> None:
    """Close all of them."""
    for each in sockets:
        each.close()


def _bound(
    family: socket.AddressFamily, address: tuple[object, ...], *, is_shared: bool
) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # `::` serves IPv4 too, whatever the host's default is.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(address)
    except BaseException:
        listening.close()
        raise
    return listening
