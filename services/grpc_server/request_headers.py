"""How a call begins: from a request's header fields to whom it is for and until when.

Fields and their meaning are those of gRPC's mapping to HTTP/2.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import grpc

from services.grpc_server.response_headers import http_status_block, trailers_only_block

Fields = Iterable[tuple[bytes, bytes]]
Metadatum = tuple[str, str | bytes]

# Compressions of messages that are understood, in the words of `grpc-encoding`.
ENCODINGS: Final = ("identity", "deflate", "gzip")
_PSEUDO: Final = frozenset((b":method", b":path", b":scheme", b":authority"))
_NEEDED: Final = frozenset((b":method", b":path", b":scheme"))
# Of each field, beside its name and value (RFC 9113, section 6.5.2).
FIELD_BYTES: Final = 32
# RFC 9113, section 8.2.2: these belong to HTTP/1.1.
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
# Used up here; all others are the handler's.
_OF_TRANSPORT: Final = frozenset(
    (b"te", b"content-type", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-timeout")
)
_WRONG_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")
# RFC 9113, section 8.2.1, which refuses spaces around a value too; gRPC's C++ clients send them.
_WRONG_IN_VALUES: Final = re.compile(rb"[\x00\r\n]")
# RFC 3986, sections 3.1 to 3.3: bytes beyond ASCII are taken in a path, as methods have names.
_PSEUDO_VALUES: Final = {
    b":method": re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"),
    b":scheme": re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*"),
    b":path": re.compile(rb"[^\x00-\x20\x7f]+"),
    b":authority": re.compile(rb"[^\x00-\x20\x7f/?#@]*"),
}
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class MalformedFieldsError(Exception):
    """The fields are not those of an HTTP/2 request; the stream is worthless."""


class RequestHeaders(NamedTuple):
    """A call's beginning.

    Attributes:
        path: `/package.Service/Method`.
        timeout_s: until the client no longer waits; None: it does.
        encoding: how its compressed messages are compressed.
        metadata: what is the handler's; values of keys that end with `-bin` are bytes.
        refusal: the header block with which it is refused; b"" for a call that can be made.
        content_length: bytes of its DATA, where it says so; -1 where it does not.
        num_bytes: of all of its fields, counted as in RFC 9113, section 6.5.2; 0 when its
            connection keeps them for other calls too.
    """

    path: str
    timeout_s: float | None = None
    encoding: str = ENCODINGS[0]
    metadata: tuple[Metadatum, ...] = ()
    refusal: bytes = b""
    num_bytes: int = 0
    content_length: int = -1


def request_headers_from_fields(fields: Fields, max_metadata_bytes: int) -> RequestHeaders:
    """Read the fields.

    Raises:
        MalformedFieldsError: they break HTTP/2's rules.
    """
    pseudo: dict[bytes, bytes] = {}
    others: list[tuple[bytes, bytes]] = []
    num_bytes = 0
    for name, value in fields:
        num_bytes += len(name) + len(value) + FIELD_BYTES
        if name[:1] == b":":
            if others or name in pseudo or name not in _PSEUDO:
                raise MalformedFieldsError(f"pseudo-header field {name!r} out of place")
            if not _PSEUDO_VALUES[name].fullmatch(value):
                raise MalformedFieldsError(f"pseudo-header field {name!r} is {value[:64]!r}")
            pseudo[name] = value
        else:
            _check_field(name, value)
            others.append((name, value))
    if not pseudo.keys() >= _NEEDED:
        raise MalformedFieldsError("a request has :method, :scheme and :path")
    if not pseudo.get(b":authority") and not any(name == b"host" for name, _ in others):
        raise MalformedFieldsError("a request has :authority or host")
    length = _content_length(others)
    if num_bytes > max_metadata_bytes:
        why = f"metadata of {num_bytes} bytes: at most {max_metadata_bytes} are taken"
        return _refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
    return _start(pseudo, others)._replace(num_bytes=num_bytes, content_length=length)


def check_trailers(fields: Fields) -> None:
    """Raise MalformedFieldsError for what may not stand behind a request's messages."""
    for name, value in fields:
        if name[:1] == b":":
            raise MalformedFieldsError(f"pseudo-header field {name!r} in trailers")
        _check_field(name, value)


def _check_field(name: bytes, value: bytes) -> None:
    is_wrong = name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers")
    if is_wrong or not name or _WRONG_IN_NAMES.search(name) or _WRONG_IN_VALUES.search(value):
        raise MalformedFieldsError(f"field {name[:64]!r} is not HTTP/2's")


def _content_length(fields: Fields) -> int:
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return -1
    value = found.pop()
    if found or not _LENGTH.fullmatch(value):
        raise MalformedFieldsError(f"content-length {value[:32]!r}")
    return int(value)


def _start(pseudo: dict[bytes, bytes], others: list[tuple[bytes, bytes]]) -> RequestHeaders:
    of_transport = {name: value for name, value in others if name in _OF_TRANSPORT}
    if pseudo[b":method"] != b"POST":
        return RequestHeaders("", refusal=http_status_block(405))
    if not _is_grpc(of_transport.get(b"content-type", b"")):
        return RequestHeaders("", refusal=http_status_block(415))
    encoding = of_transport.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in ENCODINGS:
        known = ",".join(ENCODINGS)
        why = f"compression '{encoding[:64]}' is not offered; expected one of {known}"
        accepted = (("grpc-accept-encoding", known),)
        return _refused(grpc.StatusCode.UNIMPLEMENTED, why, accepted)
    try:
        timeout_s = _timeout_s(of_transport.get(b"grpc-timeout"))
        metadata = tuple(_metadata(each for each in others if each[0] not in _OF_TRANSPORT))
    except ValueError as error:
        return _refused(grpc.StatusCode.INTERNAL, str(error))
    return RequestHeaders(_text(pseudo[b":path"]), timeout_s, encoding, metadata)


def _refused(
    code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()
) -> RequestHeaders:
    return RequestHeaders("", refusal=trailers_only_block(code, details, trailing))


def _is_grpc(content_type: bytes) -> bool:
    """`application/grpc`, with a suffix or parameters; gRPC-Web is something else."""
    return content_type.startswith(b"application/grpc") and content_type[16:17] in b"+;"


def _timeout_s(value: bytes | None) -> float | None:
    if value is None:
        return None
    match = _TIMEOUT.fullmatch(value)
    if not match:
        raise ValueError(f"grpc-timeout '{value[:32].decode('latin-1')}': expected as in '100m'")
    return int(match[1]) * _UNIT_S[match[2]]


def _metadata(fields: Fields) -> Iterator[Metadatum]:
    for name, value in fields:
        key = name.decode("ascii")
        if not name.endswith(b"-bin"):
            yield key, _text(value)
            continue
        # Clients may join several values of a key into one field.
        for part in value.split(b","):
            yield key, _bytes(key, part.strip(b" "))


def _bytes(key: str, encoded: bytes) -> bytes:
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"metadata '{key}': not base64") from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
