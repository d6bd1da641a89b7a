"""The few fields of a ModelInferRequest that the gateway needs, read without parsing it.

A request of many megabytes passes through the gateway untouched: only the headers of its
top-level fields are walked, and bodies of tensors are stepped over. All fields are
visited, because protobuf lets a field repeat and the last one counts.
"""

from typing import Final, NamedTuple

from services.contracts.kserve.protobuf_wire import fields_of, malformed
from services.contracts.kserve.request_limits import MAX_NAME_BYTES, check_name
from services.contracts.transport.frames import Payload

_NAME_TAG = 0x0A
_VERSION_TAG = 0x12
_ID_TAG = 0x1A
_UTF8: Final = "utf-8"


class RequestHead(NamedTuple):
    """What the gateway parses of a request: its model and version, and the client's id of it."""

    model_name: str
    model_version: str
    request_id: str


def request_head_from_bytes(body: Payload) -> RequestHead:
    """Read model name, version and id.

    Raises:
        InvalidRequestError: the bytes are not a ModelInferRequest.
    """
    name: Payload = b""
    version: Payload = b""
    request_id: Payload = b""
    for tag, _, begin, end in fields_of(body):
        if tag == _NAME_TAG:
            name = body[begin:end]
        elif tag == _VERSION_TAG:
            version = body[begin:end]
        elif tag == _ID_TAG:
            request_id = body[begin:end]
    if len(name) > MAX_NAME_BYTES or len(version) > MAX_NAME_BYTES:
        check_name("the model's name", len(name))
        check_name("the model's version", len(version))
    try:
        return RequestHead(str(name, _UTF8), str(version, _UTF8), str(request_id, _UTF8))
    except UnicodeDecodeError as error:
        raise malformed(str(error)) from error
