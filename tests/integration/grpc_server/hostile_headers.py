"""Connections that idle after they have sent header blocks for which a server keeps much."""

import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from hpack import Encoder

from services.grpc_server.limits import HEADER_BLOCK_BYTES
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import LIMIT_S

_NUM_BLOCKS: Final = 64
# Of one block: fields of 134 bytes each as in RFC 9113, section 6.5.2, that is 16 KB. A list above
# 32 KB ends its connection, which then keeps nothing.
_MAX_FIELDS: Final = 120
# An indexed field (RFC 7541, section 6.1): the newest entry of the dynamic table.
_NEWEST: Final = b"\xbe"
_PING: Final = f.frame(f.PING, payload=b"all read")
_PONG: Final = f.frame(f.PING, f.ACK, payload=b"all read")


class Hostile(NamedTuple):
    """What one connection sends.

    Attributes:
        whole: frames that the server has handled once it answers PING.
        begun: what follows and is not complete.
    """

    whole: bytes = b""
    begun: bytes = b""


def _many_fields() -> bytes:
    """Calls whose header blocks are all different, short, and become long lists of fields."""
    encoder = Encoder()
    # A full dynamic table; the newest entry is what blocks then name again and again.
    entries = [(f"{number:02}", "v" * 20) for number in range(70)] + [("ab", "v" * 100)]
    blocks = [f.plain(f.request_fields()) + encoder.encode(entries, huffman=False)]
    for number in range(_NUM_BLOCKS):
        num_fields = _MAX_FIELDS * (number + 1) // _NUM_BLOCKS
        more = f.plain([("number", str(number))])
        blocks.append(f.plain(f.request_fields()) + _NEWEST * num_fields + more)
    return b"".join(
        f.header_frames(2 * number + 1, block, is_last=True) for number, block in enumerate(blocks)
    )


def _malformed() -> bytes:
    """As many calls as a server remembers to have reset: the blocks have `:method` alone."""
    streams = range(1001, 5201, 2)
    return b"".join(f.headers(stream, [(":method", "POST")]) for stream in streams)


def _unfinished() -> bytes:
    """Nearly all of a block that is as long as it may be."""
    more = f.frame(f.CONTINUATION, 0, 9001, bytes(HEADER_BLOCK_BYTES // 2))
    return f.frame(f.HEADERS, 0, 9001) + more + more[:-1]


HOSTILE: Final[Mapping[str, Hostile]] = {
    "blocks of many fields": Hostile(_many_fields()),
    "malformed calls": Hostile(_malformed()),
    "an unfinished block": Hostile(begun=_unfinished()),
    "all of these": Hostile(_many_fields() + _malformed(), _unfinished()),
}


def hostile_connections(port: int, number: int, hostile: Hostile) -> list[socket.socket]:
    """Connections that are open and have sent that.

    Raises:
        ConnectionError: the server has closed one.
    """
    connections = [_answered(port, hostile) for _ in range(number)]
    # What one more is answered comes after what these have begun.
    _answered(port, Hostile()).close()
    return connections


def _answered(port: int, hostile: Hostile) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    connection.sendall(f.greeting() + hostile.whole + _PING)
    received = b""
    while _PONG not in received:
        piece = connection.recv(65_536)
        if not piece:
            raise ConnectionError("the server has closed a connection that sent hostile headers")
        received = received[-len(_PONG) :] + piece
    connection.sendall(hostile.begun)
    return connection
