"""Header blocks of answers, by HPACK (RFC 7541) without a dynamic table.

Blocks do not depend on what was sent before, so that the usual ones are encoded once. A client that
makes its table smaller needs a dynamic table size update all the same.
"""

import base64
import re
from collections.abc import Iterable
from typing import Final

import grpc

Metadata = Iterable[tuple[str, str | bytes]]

# Of the static table: `:status 200`, and the name `:status`.
_STATUS_200: Final = b"\x88"
_STATUS_NAME: Final = b"\x08"
_LITERAL: Final = b"\x00"
# SETTINGS_HEADER_TABLE_SIZE of a client by default, and a dynamic table size update to 0, which
# section 4.2 wants in front of one block and allows in front of each.
DEFAULT_TABLE_BYTES: Final = 4096
NO_TABLE: Final = b"\x20"
_SEVEN_BITS: Final = 0x7F
# Clients take some 8 KiB of metadata, and drop all of it beyond that.
_MAX_MESSAGE_BYTES: Final = 6_000
_PLAIN: Final = re.compile(rf"[!-$&-~]([ -$&-~]{{0,{_MAX_MESSAGE_BYTES - 2}}}[!-$&-~])?")
_ESCAPES: Final = {byte: f"%{byte:02X}".encode() for byte in range(256)} | {
    byte: bytes((byte,)) for byte in range(0x20, 0x7F) if byte != ord("%")
}


def response_block(metadata: Metadata = ()) -> bytes:
    """Response-Headers."""
    return _STATUS_200 + _CONTENT_TYPE + _fields(metadata)


def trailers_block(code: grpc.StatusCode, details: str = "", trailing: Metadata = ()) -> bytes:
    """Trailers: the status, its details, and metadata.

    Args:
        code: the status.
        details: for `grpc-message`, percent-encoded; left out when empty.
        trailing: custom metadata.

    Returns:
        The HPACK block, which any frame size limit may still split.
    """
    number: int = code.value[0]
    block = _field(b"grpc-status", str(number).encode())
    if details:
        block += _field(b"grpc-message", _escaped(details))
    return block + _fields(trailing)


def trailers_only_block(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> bytes:
    """Trailers-Only: an answer that is a status alone; see `trailers_block` for the arguments."""
    return response_block() + trailers_block(code, details, trailing)


def http_status_block(status: int) -> bytes:
    """An answer to a request that is no gRPC call."""
    return _STATUS_NAME + _string(str(status).encode())


def _wire(value: str | bytes) -> bytes:
    """As sent: bytes, the values of keys that end with `-bin`, in base64."""
    return value.encode() if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")


def _escaped(details: str) -> bytes:
    """Percent-encoded as gRPC wants it; truncated between two characters."""
    # Most details are plain ASCII.
    if _PLAIN.fullmatch(details):
        return details.encode()
    parts = []
    num_bytes = 0
    for character in details:
        part = b"".join(map(_ESCAPES.__getitem__, character.encode(errors="replace")))
        num_bytes += len(part)
        if num_bytes > _MAX_MESSAGE_BYTES:
            break
        parts.append(part)
    # A value may not begin or end with a space (RFC 9113, section 8.2.1).
    for place in (0, -1):
        if parts and parts[place] == b" ":
            parts[place] = b"%20"
    return b"".join(parts)


def _fields(metadata: Metadata) -> bytes:
    return b"".join(_field(key.encode(), _wire(value)) for key, value in metadata)


def _field(name: bytes, value: bytes) -> bytes:
    return _LITERAL + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    return _length(len(text)) + text


def _length(number: int) -> bytes:
    """An integer with a prefix of seven bits (section 5.1)."""
    if number < _SEVEN_BITS:
        return bytes((number,))
    encoded = bytearray((_SEVEN_BITS,))
    number = number - _SEVEN_BITS
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_CONTENT_TYPE: Final = _field(b"content-type", b"application/grpc")
