"""What one connection floods a server with, as pieces of bytes; most are endless."""

import gzip
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from h2.settings import SettingCodes
from hpack import Encoder

from tests.integration.grpc_server import frames as f

NOTHING = "nothing"
_PIECE_BYTES = 65_536
Attack = Callable[[], Iterator[bytes]]


def _again(first: bytes, each: bytes) -> Attack:
    def pieces() -> Iterator[bytes]:
        yield first
        piece = each * (_PIECE_BYTES // len(each) + 1)
        while True:
            yield piece

    return pieces


def _calls(
    method: str,
    behind: Callable[[int], bytes],
    flags: int = f.END_HEADERS,
    more: f.Fields | None = None,
) -> Attack:
    """One call after another, as short as the table of header fields makes them."""

    def pieces() -> Iterator[bytes]:
        encoder, fields = Encoder(), [*f.request_fields(method), *(more or ())]
        first, rest = encoder.encode(fields), encoder.encode(fields)
        yield f.frame(f.HEADERS, flags, 1, first) + behind(1)
        for begin in itertools.count(3, 2000):
            yield b"".join(
                f.frame(f.HEADERS, flags, stream, rest) + behind(stream)
                for stream in range(begin, begin + 2000, 2)
            )

    return pieces


def _huffman() -> Iterator[bytes]:
    """Calls whose fields are long, compressed and never the same."""
    encoder = Encoder()
    for stream in itertools.count(1, 2):
        fields = [*f.request_fields("Nothing"), ("number", f"{stream:012}" * 1200)]
        block = encoder.encode([(name, value, True) for name, value in fields])
        yield f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream, block)


def _hpack_bomb() -> Iterator[bytes]:
    """A thousand calls whose blocks of 4 KB name an entry of the dynamic table, of 4 KB itself."""
    plain = f.plain(f.request_fields())
    entry = Encoder().encode([("a", "v" * 3900)], huffman=False)
    yield f.frame(f.HEADERS, f.END_HEADERS, 1, plain + entry)
    for stream in range(3, 2003, 2):
        yield f.frame(f.HEADERS, f.END_HEADERS, stream, plain + NEWEST_FIELD * 4096)


def _questions() -> Iterator[bytes]:
    """Questions of reflection, whose answers the client's window of 0 holds back."""
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    fields = [(name, path if name == ":path" else value) for name, value in f.request_fields()]
    asked = ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService")
    each = f.message(asked.SerializeToString())
    yield f.settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    for stream in itertools.count(1, 2):
        yield f.headers(stream, fields) + f.body(stream, each * 1000, is_last=False)


@cache
def _bomb(num_bytes: int) -> bytes:
    """A message that becomes so many bytes."""
    return f.message(gzip.compress(bytes(num_bytes)), flag=1)


def _bombs(*sizes: int) -> Iterator[bytes]:
    """Calls that become so many bytes."""
    fields = f.request_fields("Drop", [("grpc-encoding", "gzip")])
    for number, size in enumerate(sizes):
        stream = 2 * number + 1
        yield f.headers(stream, fields) + f.body(stream, _bomb(size))


OPEN = f.headers(1, f.request_fields("Gated"))
CLOSED = OPEN + f.rst_stream(1)
EMPTY = f.message(b"")
# An indexed field (RFC 7541, section 6.1): the entry of the dynamic table that came last.
NEWEST_FIELD = b"\xbe"
SETTINGS = f.frame(f.SETTINGS, payload=struct.pack("!HI", 9, 9) * 2700)
WINDOWS = f.settings({SettingCodes.INITIAL_WINDOW_SIZE: 9})

ATTACKS: Mapping[str, Attack] = {
    NOTHING: lambda: iter(()),
    "rapid reset": _calls("Hold", f.rst_stream),
    "rapid reset of whole requests": _calls(
        "Hold", lambda n: f.data(n, EMPTY, is_last=True) + f.rst_stream(n)
    ),
    "WINDOW_UPDATE of 0 on each stream": _calls("Hold", lambda n: f.window_update(n, 0)),
    "window overflow on each stream": _calls("Hold", lambda n: f.window_update(n, f.MAX_WINDOW)),
    "DATA after END_STREAM on each stream": _calls(
        "Gated", lambda n: f.data(n, b""), f.END_HEADERS | f.END_STREAM
    ),
    "SETTINGS, empty": _again(b"", f.settings({})),
    "SETTINGS with 2,700 entries": _again(b"", SETTINGS),
    "PING": _again(b"", f.frame(f.PING, payload=bytes(8))),
    "PING ACK, unasked": _again(b"", f.frame(f.PING, f.ACK, payload=bytes(8))),
    "SETTINGS ACK, unasked": _again(b"", f.frame(f.SETTINGS, f.ACK)),
    "PRIORITY": _again(b"", f.frame(f.PRIORITY, 0, 1, bytes(5))),
    "empty DATA, open stream": _again(OPEN, f.data(1, b"")),
    "empty DATA, closed stream": _again(CLOSED, f.data(1, b"")),
    "1-byte DATA, open stream": _again(OPEN, f.data(1, b"\x00")),
    "WINDOW_UPDATE 1024, closed stream": _again(CLOSED, f.window_update(1, 1024)),
    "requests with 480 indexed fields": _calls(
        "Echo", lambda n: f.data(n, EMPTY, is_last=True), more=[("a", "")] * 470
    ),
    "requests with 1,800 indexed fields": _calls(
        "Echo", lambda n: f.data(n, EMPTY, is_last=True), more=[("a", "")] * 1790
    ),
    "requests with 14 KB in Huffman's code": _huffman,
    "CONTINUATION of 1 byte": _again(
        f.frame(f.HEADERS, 0, 1, f.plain(f.request_fields())),
        f.frame(f.CONTINUATION, 0, 1, NEWEST_FIELD),
    ),
    "HPACK bomb, 4 KB x 1,000": _hpack_bomb,
    "reflection with a window of 0": _questions,
    "gzip bombs, 8 of 250 MiB": lambda: _bombs(*[250 << 20] * 8),
    "gzip bombs of 4 KB to 4 MiB": lambda: _bombs(*[4096 << n for n in range(11)] * 1000),
    "requests, answered": _calls("Echo", lambda n: f.data(n, EMPTY, is_last=True)),
}
