"""HTTP/2 and gRPC in bytes, as a client sends them: right ones, and wrong ones on purpose."""

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = DataFrame.type
HEADERS: Final = HeadersFrame.type
PRIORITY: Final = PriorityFrame.type
RST_STREAM: Final = RstStreamFrame.type
SETTINGS: Final = SettingsFrame.type
PUSH_PROMISE: Final = PushPromiseFrame.type
PING: Final = PingFrame.type
GOAWAY: Final = GoAwayFrame.type
WINDOW_UPDATE: Final = WindowUpdateFrame.type
CONTINUATION: Final = ContinuationFrame.type
UNKNOWN: Final = 0xBE

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

MAX_WINDOW: Final = 2**31 - 1
FIRST_WINDOW: Final = 65535

Fields = list[tuple[str, str]]


def frame(kind: int | None, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame; nothing is checked."""
    assert kind is not None
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def settings(changes: Mapping[int, int]) -> bytes:
    """A SETTINGS frame."""
    pairs = (struct.pack("!HI", code, value) for code, value in changes.items())
    return frame(SETTINGS, payload=b"".join(pairs))


def greeting(changes: Mapping[int, int] | None = None, connection_window: int = 0) -> bytes:
    """What a client's first bytes are; `connection_window` is what it adds to the first one."""
    more = window_update(0, connection_window) if connection_window else b""
    return PREFACE + settings(changes or {}) + more


def wide(window: int = MAX_WINDOW) -> bytes:
    """A greeting of a client whose windows are never in the way."""
    return greeting({SettingCodes.INITIAL_WINDOW_SIZE: window}, MAX_WINDOW - FIRST_WINDOW)


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack("!I", size))


def rst_stream(stream: int, code: int = 8) -> bytes:
    """A RST_STREAM frame; CANCEL, if not told."""
    return frame(RST_STREAM, 0, stream, struct.pack("!I", code))


def data(stream: int, payload: bytes, *, is_last: bool = False) -> bytes:
    """A DATA frame."""
    return frame(DATA, END_STREAM if is_last else 0, stream, payload)


def body(stream: int, payload: bytes, *, is_last: bool = True, size: int = 16384) -> bytes:
    """DATA frames of at most `size` bytes."""
    cuts = range(0, len(payload), size) or range(1)
    last = cuts[-1]
    return b"".join(
        data(stream, payload[cut : cut + size], is_last=is_last and cut == last) for cut in cuts
    )


def message(payload: bytes, *, flag: int = 0) -> bytes:
    """A gRPC message; `flag` 1 says that it is compressed."""
    return struct.pack("!BI", flag, len(payload)) + payload


def request_fields(method: str = "Echo", more: Iterable[tuple[str, str]] = ()) -> Fields:
    """The header fields of a call of the test's service."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/test.Probe/{method}"),
        (":authority", "here"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]


def plain(fields: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
    """A header block that leaves every table as it is: usable in any order, on any connection."""
    encoder = Encoder()
    return encoder.encode([(name, value, True) for name, value in fields])


def headers(
    stream: int,
    fields: Iterable[tuple[str | bytes, str | bytes]] | None = None,
    *,
    is_last: bool = False,
) -> bytes:
    """A HEADERS frame with a plain block: of a call of Echo, if not told."""
    flags = END_HEADERS | (END_STREAM if is_last else 0)
    block = plain(request_fields() if fields is None else fields)
    return frame(HEADERS, flags, stream, block)


def call(stream: int, method: str = "Echo", payload: bytes = b"", **more: str) -> bytes:
    """A whole unary call; `more` are header fields, with _ for -."""
    fields = request_fields(method, [(name.replace("_", "-"), more[name]) for name in more])
    return headers(stream, fields) + body(stream, message(payload))


def header_frames(stream: int, block: bytes, *, size: int = 16384, is_last: bool = False) -> bytes:
    """HEADERS and CONTINUATIONs of at most `size` bytes each."""
    pieces = [block[cut : cut + size] for cut in range(0, len(block), size)]
    flags = END_STREAM if is_last else 0
    kinds = [HEADERS] + [CONTINUATION] * (len(pieces) - 1)
    ends = [0] * (len(pieces) - 1) + [END_HEADERS]
    return b"".join(
        frame(kind, end | (flags if kind == HEADERS else 0), stream, piece)
        for kind, end, piece in zip(kinds, ends, pieces, strict=True)
    )
