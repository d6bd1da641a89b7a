"""Request-Headers of a call: from header fields to path, deadline, encoding and metadata.

Fields and their meaning are those of gRPC's mapping to HTTP/2.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import grpc

from services.grpc_server.headers.response_headers import http_status_block, trailers_only_block

Fields = Iterable[tuple[bytes, bytes]]
Metadatum = tuple[str, str | bytes]

# The values of `grpc-encoding` that are supported.
ENCODINGS: Final = ("identity", "deflate", "gzip")
_PSEUDO: Final = frozenset((b":method", b":path", b":scheme", b":authority"))
_NEEDED: Final = frozenset((b":method", b":path", b":scheme"))
# Of each field, beside its name and value (RFC 9113, section 6.5.2).
FIELD_BYTES: Final = 32
# RFC 9113, section 8.2.2: these belong to HTTP/1.1.
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
# Used here; all others are metadata.
_OF_TRANSPORT: Final = frozenset(
    (b"te", b"content-type", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-timeout")
)
_WRONG_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")
# RFC 9113, section 8.2.1, but for spaces around a value, which gRPC's C++ clients send.
_WRONG_IN_VALUES: Final = re.compile(rb"[\x00\r\n]")
# RFC 3986, sections 3.1 to 3.3; a path may have bytes beyond ASCII, as names of methods may.
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
    """The request is malformed (RFC 9113, section 8.1.1)."""


class RequestHeaders(NamedTuple):
    """Of one call.

    Attributes:
        path: `/package.Service/Method`.
        timeout_s: until the deadline; None without one.
        encoding: of its compressed messages.
        metadata: values of keys that end with `-bin` are bytes.
        refusal: the header block of the answer to a call that is refused; b"" for others.
        content_length: -1 without one.
        num_bytes: of all of its fields, as in RFC 9113, section 6.5.2; 0 where they are kept for
            other calls of the connection too.
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
            # RFC 9113, section 8.3: known ones, once each, in front of all other fields.
            if others or name in pseudo or name not in _PSEUDO:
                raise MalformedFieldsError(f"pseudo-header field {name!r} out of place")
            if not _PSEUDO_VALUES[name].fullmatch(value):
                raise MalformedFieldsError(f"pseudo-header field {name!r} is {value[:64]!r}")
            pseudo[name] = value
        else:
            if not _is_valid(name, value):
                raise MalformedFieldsError(f"field {name[:64]!r} is not allowed in HTTP/2")
            others.append((name, value))
    if not pseudo.keys() >= _NEEDED:
        raise MalformedFieldsError("a request has :method, :scheme and :path")
    if not pseudo.get(b":authority") and not any(name == b"host" for name, _ in others):
        raise MalformedFieldsError("a request has :authority or host")
    length = _content_length(others)
    if num_bytes > max_metadata_bytes:
        why = f"metadata of {num_bytes} bytes: at most {max_metadata_bytes} are received"
        return _refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
    return _start(pseudo, others)._replace(num_bytes=num_bytes, content_length=length)


def are_trailers(fields: Fields) -> bool:
    """Whether fields may follow the messages of a request."""
    return all(name[:1] != b":" and _is_valid(name, value) for name, value in fields)


def _is_valid(name: bytes, value: bytes) -> bool:
    is_wrong = name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers")
    is_wrong = is_wrong or not name or bool(_WRONG_IN_NAMES.search(name))
    return not (is_wrong or _WRONG_IN_VALUES.search(value))


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
        why = f"compression '{encoding[:64]}' is not supported; expected one of {known}"
        accepted = (("grpc-accept-encoding", known),)
        return _refused(grpc.StatusCode.UNIMPLEMENTED, why, accepted)
    try:
        given = of_transport.get(b"grpc-timeout")
        timeout_s = None if given is None else timeout_from_header(given)
        metadata = tuple(_metadata(each for each in others if each[0] not in _OF_TRANSPORT))
    except ValueError as error:
        return _refused(grpc.StatusCode.INTERNAL, str(error))
    return RequestHeaders(_text(pseudo[b":path"]), timeout_s, encoding, metadata)


def _refused(
    code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()
) -> RequestHeaders:
    return RequestHeaders("", refusal=trailers_only_block(code, details, trailing))


def _is_grpc(content_type: bytes) -> bool:
    """`application/grpc`, with a suffix or parameters; not gRPC-Web."""
    return content_type.startswith(b"application/grpc") and content_type[16:17] in b"+;"


def timeout_from_header(value: bytes) -> float:
    """Seconds of a `grpc-timeout`; raises ValueError for another form."""
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
