"""Many connections that do next to nothing."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from tests.integration.grpc_server import frames as f


class Crowd(NamedTuple):
    """Connections that are all alike.

    Attributes:
        number: of them.
        first: what each sends at once.
        slow: what each sends a second later and on, a byte a second.
        is_half_closed: each closes its side of the connection behind `first`.
        is_secure: they connect to the port with TLS.
    """

    number: int
    first: bytes = b""
    slow: bytes = b""
    is_half_closed: bool = False
    is_secure: bool = False


def _client_hello() -> bytes:
    """What a client of TLS says first; the server's answer costs it a signature."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


_BEGUN: Final = f.headers(1) + f.data(1, f.message(bytes(99_999))[:16_384])

CROWDS: Final[Mapping[str, Crowd]] = {
    "10,000 idle connections": Crowd(10_000, f.greeting()),
    "500 prefaces, a byte a second": Crowd(500, slow=f.PREFACE),
    "500 half-closed uploads": Crowd(500, f.greeting() + _BEGUN, is_half_closed=True),
    "500 stalled TLS handshakes": Crowd(500, _client_hello(), is_secure=True),
}
