"""The few fields of a ModelInferRequest that the gateway needs, read without parsing it.

A request of many megabytes passes through the gateway untouched: only the headers of its
top-level fields are walked, and bodies of tensors are stepped over. All fields are
visited, because protobuf lets a field repeat and the last one counts.
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from services.contracts.errors import InvalidRequestError
from services.contracts.frames import Payload
from services.contracts.protobuf_wire import MAX_FIELDS, field_span, varint
from services.contracts.request_limits import MAX_NAME_BYTES, check_text
from services.pb import open_inference_v2_pb2 as pb

_NAME_TAG, _VERSION_TAG, _ID_TAG = 0x0A, 0x12, 0x1A
# Fields 1 to 7 of the message, each length-delimited. A wrong wire type is rare enough for the
# real parser, which may be given little: what it makes of bytes can be fifty times their size.
_LAST_NUMBER: Final = 7
_KNOWN_TAGS: Final = frozenset(number << 3 | 2 for number in range(1, _LAST_NUMBER + 1))
_MAX_PARSED_BYTES: Final = 1 << 16
_UTF8: Final = "utf-8"


class RequestHead(NamedTuple):
    """What the gateway knows of a request: whom it is for, and the client's id of it."""

    model_name: str
    model_version: str
    request_id: str


def request_head_from_bytes(body: Payload) -> RequestHead:
    """Read model name, version and id.

    Raises:
        InvalidRequestError: the bytes are not a ModelInferRequest.
    """
    found = _walk(body)
    if found is None:
        return _parse_wholly(body)
    name, version, request_id = found
    if len(name) > MAX_NAME_BYTES or len(version) > MAX_NAME_BYTES:
        check_text("the model's name", len(name))
        check_text("the model's version", len(version))
    try:
        return RequestHead(str(name, _UTF8), str(version, _UTF8), str(request_id, _UTF8))
    except UnicodeDecodeError as error:
        raise _not_a_request(str(error)) from error


def _walk(body: Payload) -> tuple[Payload, Payload, Payload] | None:
    """Name, version and id; None when only the real parser can tell."""
    name: Payload = b""
    version: Payload = b""
    request_id: Payload = b""
    at, end, num_fields = 0, len(body), 0
    while at < end:
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise _not_a_request(f"expected at most {MAX_FIELDS} fields, got more")
        tag = body[at]
        if tag not in _KNOWN_TAGS:
            at = _after_unknown(body, at)
            if at < 0:
                return None
            continue
        size, start = _length(body, at + 1)
        at = start + size
        if at > end:
            return None
        if tag == _NAME_TAG:
            name = body[start:at]
        elif tag == _VERSION_TAG:
            version = body[start:at]
        elif tag == _ID_TAG:
            request_id = body[start:at]
    return name, version, request_id


def _after_unknown(body: Payload, at: int) -> int:
    """Where a field ends that this release does not know; -1 when only the parser can tell."""
    try:
        tag, start = varint(body, at)
        return field_span(body, tag, start)[1] if tag >> 3 > _LAST_NUMBER else -1
    except InvalidRequestError:
        return -1


def _length(body: Payload, at: int) -> tuple[int, int]:
    """A varint and the position after it; a size beyond the body when it is cut off."""
    if at < len(body) and body[at] < 0x80:  # nearly all are of one byte
        return body[at], at + 1
    size = shift = 0
    for byte in body[at : at + 5]:
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7
    return len(body) + 1, at


def _parse_wholly(body: Payload) -> RequestHead:
    if len(body) > _MAX_PARSED_BYTES:
        raise _not_a_request("expected fields of its types, got others or a cut-off one")
    try:
        request = pb.ModelInferRequest.FromString(bytes(body))
    except DecodeError as error:
        raise _not_a_request(str(error)) from error
    return RequestHead(request.model_name, request.model_version, request.id)


def _not_a_request(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the message is not an inference.ModelInferRequest: {reason}")
