"""HTTP/2 frames (RFC 9113, section 6): kinds, flags, error codes, and their encoding.

A frame: length uint24 | kind uint8 | flags uint8 | stream uint32, of which the first bit is
reserved | payload. Pure: no I/O here.
"""

import enum
import struct
from collections.abc import Mapping
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# One bit may have two meanings: ACK is of SETTINGS and PING, END_STREAM of DATA and HEADERS.
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEAD_BYTES: Final = 9
# The length in two parts: struct has no uint24.
HEAD: Final = struct.Struct("!BHBBI")
STREAM_MASK: Final = 0x7FFF_FFFF
UINT32: Final = struct.Struct("!I")
SETTING: Final = struct.Struct("!HI")
GOAWAY_HEAD: Final = struct.Struct("!II")


class ErrorCode(enum.IntEnum):
    """Of RST_STREAM and GOAWAY (section 7)."""

    # Without those that a gRPC server has no use for; codes of clients are not looked at.
    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Setting(enum.IntEnum):
    """The settings of section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class Http2ConnectionError(Exception):
    """A connection error (section 5.4.1): ends the connection by GOAWAY."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame_head(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """A frame header (section 4.1).

    Args:
        kind: frame type, as `HEADERS`.
        flags: bits of that kind; 0 for none.
        stream_id: 0 is the connection.
        size: of the payload, in bytes.
    """
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame; see `frame_head` for the arguments."""
    return frame_head(kind, flags, stream_id, len(payload)) + payload


def settings_frame(values: Mapping[Setting, int]) -> bytes:
    """SETTINGS of this server."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*each) for each in values.items()))


def window_update(stream_id: int, num_bytes: int) -> bytes:
    """WINDOW_UPDATE of a stream; 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(num_bytes))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """GOAWAY (section 6.8).

    Args:
        last_stream_id: streams above it were not served, and may be sent again.
        code: `NO_ERROR` for a graceful end.
        reason: debug data; cut to 256 bytes.
    """
    # Debug data is for people (section 6.8), and may quote what a client sent: bounded.
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(last_stream_id, code) + reason.encode()[:256])


def protocol_error(reason: str) -> Http2ConnectionError:
    """A connection error of type PROTOCOL_ERROR."""
    return Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, reason)


def check_length(payload: bytes, size: int, name: str) -> None:
    """Raise Http2ConnectionError for a payload of another size than its kind has.

    Args:
        payload: of the frame.
        size: that the frame's kind has, in bytes.
        name: of the kind, for the message.
    """
    if len(payload) != size:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes: expected {size}"
        )
