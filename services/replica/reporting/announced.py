"""The address under which gateways of other hosts reach a replica's data port."""

import socket

from services.contracts.errors import NotReadyError

_WILDCARD_HOSTS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to


def is_wildcard(host: str) -> bool:
    """Whether a port of that host listens on all interfaces, and so has no address to dial."""
    return host in _WILDCARD_HOSTS


def address_towards(peer: str) -> str:
    """This host's own address on the route to `host:port`; blocks while the name is resolved.

    Not that of the host's own name: `/etc/hosts` of Debian and Ubuntu has 127.0.1.1 for it.

    Raises:
        NotReadyError: the name is not known, or no route leads there.
    """
    host, _, port = peer.rpartition(":")
    fault = OSError("no address")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except OSError as error:
        raise NotReadyError(f"address '{peer}' cannot be resolved: {error}") from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                # A datagram socket sends nothing: the kernel only chooses the interface.
                probe.connect(address)
            except OSError as error:
                fault = error
                continue
            own = str(probe.getsockname()[0])
            return f"[{own}]" if family is socket.AF_INET6 else own
    raise NotReadyError(f"no route leads to {peer}: {fault}; set SMELT_REPLICA_ANNOUNCED_HOST")
