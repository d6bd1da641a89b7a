"""The wire between gateway and replica: frames, their kinds and limits. Pure: no I/O here.

A frame, big endian:

    kind uint8 | flags uint8 | meta size uint16 | payload size uint32 | request id uint64
    meta        a small struct of its kind, at most MAX_META_BYTES
    payload     opaque bytes: a serialized request, answer or message

| kind       | from    | meta                                   | payload             |
|------------|---------|----------------------------------------|---------------------|
| HELLO      | both    | magic, protocol version, token         | -                   |
| INFER      | gateway | deadline, trace                        | request             |
| OK         | replica | -                                      | answer              |
| ERROR      | replica | retry delay, class of contracts.errors | message             |
| CANCEL     | gateway | -                                      | -                   |
| STATISTICS | gateway | -                                      | request             |
| PING       | gateway | -                                      | -                   |
| PONG       | replica | -                                      | -                   |
| LEND       | gateway | -                                      | descriptors         |
| INFER_LENT | gateway | as INFER                               | place of a request  |
| CHANGE     | gateway | -                                      | a change            |

The gateway opens with HELLO, and the replica answers with its own once it accepts the
gateway's token, so a connection that is open may be used. A request id is the gateway's;
INFER, STATISTICS, PING and LEND are answered once under the same id, in any order, or never when
CANCEL came first. Id 0 is the connection's own: HELLO, and the ERROR that says why a
connection is closed. No flag has a meaning in protocol version 2, so all must be 0. LEND and
INFER_LENT go to replicas alone that took memory of the gateway, see `lent_memory`. CHANGE, which
OK or ERROR answers, is between processes of one gateway (`gateway/workers/change_channel.py`).
"""

import enum
import math
import struct
from typing import NamedTuple, cast

from services.contracts import errors
from services.contracts.errors import InvalidRequestError, OverloadedError, SmeltError

PROTOCOL_VERSION = 2
MAX_META_BYTES = 4096
# What one gRPC message may hold, so that no request a client may send is refused here.
MAX_PAYLOAD_BYTES = 2**31 - 1
MAX_MESSAGE_CHARS = 4096
CONNECTION_ID = 0
TOKEN_BYTES = 32
NO_TOKEN = bytes(TOKEN_BYTES)

HEADER = struct.Struct("!BBHIQ")
_HELLO = struct.Struct("!4sH32s")
_INFER = struct.Struct("!d")
_ERROR = struct.Struct("!d")
_MAGIC = b"SMLT"

Payload = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """What a frame is for."""

    HELLO = 1
    INFER = 2
    OK = 3
    ERROR = 4
    CANCEL = 5
    STATISTICS = 6
    PING = 7
    PONG = 8
    LEND = 9
    INFER_LENT = 10
    CHANGE = 11


class Frame(NamedTuple):
    """One frame as it came off the wire."""

    kind: Kind
    request_id: int
    meta: bytes
    payload: Payload


class InferFrame(NamedTuple):
    """One inference request, as a replica receives it; give fields by name.

    Attributes:
        request: a serialized ModelInferRequest; a large one is a memoryview.
        deadline_s: seconds left when the frame was made, None without a deadline.
        trace: the caller's request id, for logs; of a request whose trace is kept also that, see
            `telemetry.tracing`.
    """

    request: Payload
    deadline_s: float | None = None
    trace: str = ""


def header(kind: Kind, request_id: int, meta_size: int, payload_size: int) -> bytes:
    """The fixed-size header of a frame.

    Args:
        kind: of the frame.
        request_id: the gateway's; `CONNECTION_ID` for frames of the connection itself.
        meta_size: bytes.
        payload_size: bytes.
    """
    return HEADER.pack(kind, 0, meta_size, payload_size, request_id)


def check_header(fields: tuple[int, int, int, int, int], max_payload_bytes: int) -> Kind:
    """The kind of a frame whose header fields are acceptable.

    Raises:
        InvalidRequestError: no peer of ours writes such a header, or the frame is too large.
    """
    kind, flags, meta_size, payload_size, request_id = fields
    if kind not in _KINDS or flags or meta_size > MAX_META_BYTES:
        raise InvalidRequestError(
            f"data port: bytes are not a frame (kind {kind}, flags {flags}, meta {meta_size} "
            f"bytes); wanted kind 1 to {len(Kind)}, flags 0, meta up to {MAX_META_BYTES} bytes: "
            + (
                "the peer speaks TLS, and this end does not: give it the fleet's certificate"
                if (kind, flags) in _TLS_BEGINNINGS
                else "is the peer a Smelt gateway or replica?"
            )
        )
    if payload_size > max_payload_bytes:
        raise InvalidRequestError(
            f"data port: frame {request_id} of kind {Kind(kind).name} has {payload_size} bytes of "
            f"payload, at most {max_payload_bytes} are accepted; send less, or raise the limit"
        )
    return _KINDS[kind]


_KINDS = {int(kind): kind for kind in Kind}
# The first two bytes of a handshake and of an alert.
_TLS_BEGINNINGS = ((22, 3), (21, 3))


def encode_hello(token: bytes = NO_TOKEN) -> bytes:
    """Meta of HELLO.

    `token` is what a replica sent the controller when it attached, and the controller the
    gateways: a peer that knows it is of this fleet, and means this very replica. Addresses do not
    check that, as another process may listen on the port of a replica that ended.
    """
    return _HELLO.pack(_MAGIC, PROTOCOL_VERSION, token)


def decode_hello(frame: Frame) -> bytes:
    """The peer's token.

    Raises:
        InvalidRequestError: the first frame is not a HELLO of this protocol.
        UnsupportedFeatureError: the peer has another version of it.
    """
    if frame.kind is not Kind.HELLO or len(frame.meta) != _HELLO.size:
        raise InvalidRequestError(
            f"data port: the first frame is {frame.kind.name}, wanted HELLO of {_HELLO.size} bytes"
        )
    magic, version, token = _HELLO.unpack(frame.meta)
    if magic != _MAGIC:
        raise InvalidRequestError(f"data port: HELLO begins with {magic!r}, wanted {_MAGIC!r}")
    if version != PROTOCOL_VERSION:
        raise errors.UnsupportedFeatureError(
            f"data port: the peer speaks frame protocol {version}, this process "
            f"{PROTOCOL_VERSION}; run gateway and replica of one release"
        )
    return bytes(token)


def encode_infer(frame: InferFrame) -> bytes:
    """Meta of INFER.

    Raises:
        InvalidRequestError: the trace is too long, or the deadline not a number.
    """
    deadline_s = math.inf if frame.deadline_s is None else frame.deadline_s
    trace = frame.trace.encode()
    if len(trace) > MAX_META_BYTES - _INFER.size or deadline_s != deadline_s:
        raise InvalidRequestError(
            f"request '{frame.trace[:64]}': its id and trace have {len(trace)} bytes, its deadline "
            f"is {deadline_s}; wanted at most {MAX_META_BYTES - _INFER.size} bytes, a number of "
            "seconds"
        )
    return _INFER.pack(deadline_s) + trace


def decode_infer(frame: Frame) -> InferFrame:
    """The request in an INFER frame.

    Raises:
        InvalidRequestError: the meta is malformed.
    """
    meta = frame.meta
    try:
        (deadline_s,) = _INFER.unpack_from(meta)
        trace = meta[_INFER.size :].decode()
    except (struct.error, ValueError) as error:
        raise InvalidRequestError(
            f"data port: meta of INFER {frame.request_id} ({len(meta)} bytes) is broken: {error}"
        ) from error
    return InferFrame(frame.payload, None if deadline_s == math.inf else deadline_s, trace)


def encode_error(error: SmeltError) -> tuple[bytes, bytes]:
    """Meta and payload of ERROR; a message beyond MAX_MESSAGE_CHARS is cut."""
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
    meta = _ERROR.pack(retry_after_s) + type(error).__name__.encode()
    return meta, str(error)[:MAX_MESSAGE_CHARS].encode(errors="replace")


def decode_error(frame: Frame) -> SmeltError:
    """The error in an ERROR frame, of class SmeltError when its own is not known here."""
    name = frame.meta[_ERROR.size :].decode(errors="replace")
    message = bytes(frame.payload).decode(errors="replace")
    error = _error_class(name)(message)
    if isinstance(error, OverloadedError) and len(frame.meta) >= _ERROR.size:
        (error.retry_after_s,) = _ERROR.unpack_from(frame.meta)
    return error


def _error_class(name: str) -> type[SmeltError]:
    """The class of that name, or its nearest ancestor that shows a message as it was given."""
    named = getattr(errors, name, None)
    plain_str = cast("object", SmeltError.__str__)
    for known in named.__mro__ if isinstance(named, type) else ():
        if issubclass(known, SmeltError) and known.__str__ is plain_str:
            return known
    return SmeltError
