"""Answers of the HTTP port: their bodies, and what a gRPC status is there."""

import asyncio
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

import grpc

from services.gateway.api.status_codes import RETRY_AFTER_KEY
from services.grpc_server.headers.request_headers import Metadatum
from services.grpc_server.request.messages import StatusError

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
JSON: Final = b"application/json"
BINARY: Final = b"application/octet-stream"
# As Triton, KServe and gRPC's own gateways have them.
HTTP_STATUS: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# Less hardly becomes smaller, and more would keep the event loop from other requests.
_LEAST_COMPRESSED: Final = 1024
_MOST_AT_ONCE: Final = 65_536
# Of zlib: HTTP's `deflate` has zlib's header (RFC 9110, section 8.4.1.2).
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# A weight of nothing: not acceptable (RFC 9110, section 12.4.2).
_REFUSED: Final = re.compile(r"q=0(\.0*)?")


class HttpAnswer(NamedTuple):
    """What a client gets.

    Attributes:
        headers: beyond content-type and content-length.
    """

    body: bytes = b""
    content_type: bytes = JSON
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


def json_bytes(document: Any) -> bytes:
    """JSON without spaces; raises ValueError for numbers that JSON has not."""
    return _ENCODER.encode(document).encode()


async def json_with_rows(document: Mapping[str, Any], name: str, rows: Iterable[Any]) -> bytes:
    """A JSON object with a list behind its fields; other requests have their turns meanwhile.

    Args:
        document: its fields; at least one.
        name: of the list.
        rows: its entries.

    Raises:
        ValueError: a number is none of JSON.
    """
    parts = []
    size = 0
    for row in rows:
        parts.append(json_bytes(row))
        size += len(parts[-1])
        if size > _MOST_AT_ONCE:
            size = 0
            await asyncio.sleep(0)
    return b'%b,"%b":[%b]}' % (json_bytes(document)[:-1], name.encode(), b",".join(parts))


class HttpStatusError(StatusError):
    """A refusal that HTTP has a more exact status for than that of gRPC's code.

    Attributes:
        status: of HTTP.
        method: that is allowed here; "" where it is not the method that is wrong.
    """

    def __init__(self, status: int, code: grpc.StatusCode, why: str, method: str = "") -> None:
        """Keep what the client gets.

        Args:
            status: of HTTP.
            code: of gRPC.
            why: in words for the client.
            method: that is allowed.
        """
        super().__init__(code, why)
        self.status = status
        self.method = method


def error_body(why: str) -> bytes:
    """As KServe v2 has errors."""
    return json_bytes({"error": why})


def refused_answer(
    code: grpc.StatusCode, why: str, trailing: Iterable[Metadatum] = (), *, status: int = 0
) -> HttpAnswer:
    """The answer for a status of gRPC.

    Args:
        code: of gRPC.
        why: in words for the client.
        trailing: metadata with it: how long to wait before the next try.
        status: of HTTP, where that is more exact than the code's.
    """
    headers: list[tuple[bytes, bytes]] = []
    for key, value in trailing:
        if key == RETRY_AFTER_KEY:
            headers.append((key.encode(), str(value).encode()))
            headers.append((b"retry-after", b"%d" % ceil(int(value) / 1000)))
    if code is grpc.StatusCode.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    return HttpAnswer(error_body(why), JSON, status or HTTP_STATUS.get(code, 500), tuple(headers))


def openai_error(answer: HttpAnswer) -> HttpAnswer:
    """The same refusal as OpenAI's clients read it."""
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    why = json.loads(answer.body)["error"]
    error = {"message": why, "type": kind, "param": None, "code": None}
    return answer._replace(body=json_bytes({"error": error}))


async def compressed(answer: HttpAnswer, accept_encoding: str) -> HttpAnswer:
    """The answer in an encoding that its client accepts; large ones on a thread."""
    if len(answer.body) < _LEAST_COMPRESSED or (encoding := _accepted(accept_encoding)) is None:
        return answer
    if len(answer.body) <= _MOST_AT_ONCE:
        body = _packed(answer.body, encoding)
    else:
        body = await asyncio.to_thread(_packed, answer.body, encoding)
    headers = (*answer.headers, (b"content-encoding", encoding.encode()))
    return answer._replace(body=body, headers=headers)


def _accepted(accept_encoding: str) -> str | None:
    """The first encoding that is accepted, in time that grows with the field and no faster."""
    for each in accept_encoding.split(","):
        name, _, weight = each.partition(";")
        encoding = name.strip().lower()
        if encoding in _WINDOW_BITS and not _REFUSED.fullmatch(weight.strip()):
            return encoding
    return None


def _packed(body: bytes, encoding: str) -> bytes:
    compressor = zlib.compressobj(1, wbits=_WINDOW_BITS[encoding])
    return compressor.compress(body) + compressor.flush()
