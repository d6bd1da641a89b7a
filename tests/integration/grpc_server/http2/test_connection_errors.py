"""What ends a connection, and with which code; nothing a peer sends may do more than that."""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting
from hyperframe.frame import GoAwayFrame

from services.grpc_server.limits import FRAME_BYTES, Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

OPEN = f.headers(1, f.request_fields("Gated"))
BEGUN = f.frame(f.HEADERS, 0, 1, f.plain(f.request_fields()))
BLOCK = f.plain(f.request_fields())
Row = tuple[str, bytes, Error]


def first_frames() -> Iterator[Row]:
    """What may not stand behind the preface."""
    yield "PING", f.frame(f.PING, payload=bytes(8)), Error.PROTOCOL_ERROR
    yield "HEADERS", f.headers(1), Error.PROTOCOL_ERROR
    yield "DATA", f.data(1, b""), Error.PROTOCOL_ERROR
    yield "WINDOW_UPDATE", f.window_update(0, 1), Error.PROTOCOL_ERROR
    yield "unknown", f.frame(f.UNKNOWN), Error.PROTOCOL_ERROR
    yield "SETTINGS ack", f.frame(f.SETTINGS, f.ACK), Error.PROTOCOL_ERROR


def sizes() -> Iterator[Row]:
    """Frames that cannot have the size they have."""
    wrong = {
        "SETTINGS": (f.SETTINGS, 0, (1, 5, 7)),
        "PING": (f.PING, 0, (0, 7, 9)),
        "RST_STREAM": (f.RST_STREAM, 1, (0, 3, 5)),
        "WINDOW_UPDATE": (f.WINDOW_UPDATE, 0, (0, 3, 5)),
        "WINDOW_UPDATE of a stream": (f.WINDOW_UPDATE, 1, (3, 5)),
        "PRIORITY": (f.PRIORITY, 1, (0, 4, 6)),
        "GOAWAY": (f.GOAWAY, 0, (0, 7)),
    }
    for name, (kind, stream, nums) in wrong.items():
        for num in nums:
            frame = f.frame(kind, 0, stream, bytes(num))
            yield f"{name} of {num}", OPEN + frame, Error.FRAME_SIZE_ERROR
    for name, kind, flags, stream in (
        ("DATA", f.DATA, 0, 1),
        ("padded DATA", f.DATA, f.PADDED, 1),
        ("SETTINGS", f.SETTINGS, 0, 0),
        ("unknown", f.UNKNOWN, 0, 0),
    ):
        # The head alone must do: nobody shall wait for so many bytes.
        head = struct.pack("!I", FRAME_BYTES + 1)[1:] + struct.pack("!BBI", kind, flags, stream)
        yield f"large {name}", OPEN + head + b"\x00", Error.FRAME_SIZE_ERROR


def streams() -> Iterator[Row]:
    """Frames of streams that cannot have them."""
    of_streams = {
        "DATA": (f.DATA, b""),
        "HEADERS": (f.HEADERS, BLOCK),
        "PRIORITY": (f.PRIORITY, bytes(5)),
        "RST_STREAM": (f.RST_STREAM, bytes(4)),
        "CONTINUATION": (f.CONTINUATION, b""),
    }
    for name, (kind, payload) in of_streams.items():
        yield f"{name} of 0", f.frame(kind, f.END_HEADERS, 0, payload), Error.PROTOCOL_ERROR
    of_connections = {
        "SETTINGS": (f.SETTINGS, b""),
        "PING": (f.PING, bytes(8)),
        "GOAWAY": (f.GOAWAY, bytes(8)),
    }
    for name, (kind, payload) in of_connections.items():
        yield f"{name} of 1", OPEN + f.frame(kind, 0, 1, payload), Error.PROTOCOL_ERROR
    for number in (2, 3):
        for name, frame in (
            ("DATA", f.data(number, b"")),
            ("RST_STREAM", f.rst_stream(number)),
            ("WINDOW_UPDATE", f.window_update(number, 1)),
        ):
            yield f"{name} of idle {number}", OPEN + frame, Error.PROTOCOL_ERROR


def order() -> Iterator[Row]:
    """Frames at the wrong time."""
    rest = f.frame(f.CONTINUATION, f.END_HEADERS, 1)
    between = {
        "DATA": f.data(1, b""),
        "PING": f.frame(f.PING, payload=bytes(8)),
        "SETTINGS": f.settings({}),
        "SETTINGS ack": f.frame(f.SETTINGS, f.ACK),
        "HEADERS": f.headers(1),
        "HEADERS of another": f.headers(3),
        "CONTINUATION of another": f.frame(f.CONTINUATION, f.END_HEADERS, 3),
        "WINDOW_UPDATE": f.window_update(0, 1),
        "RST_STREAM": f.rst_stream(1),
        "PRIORITY": f.frame(f.PRIORITY, 0, 1, bytes(5)),
        "GOAWAY": f.frame(f.GOAWAY, 0, 0, bytes(8)),
        "unknown": f.frame(f.UNKNOWN),
    }
    for name, frame in between.items():
        yield f"{name} within a block", BEGUN + frame + rest, Error.PROTOCOL_ERROR


def padding() -> Iterator[Row]:
    """More padding than frame."""
    end = f.END_HEADERS | f.PADDED
    too_much = bytes([len(BLOCK) + 1]) + BLOCK
    yield "DATA", OPEN + f.frame(f.DATA, f.PADDED, 1, b"\x04abc"), Error.PROTOCOL_ERROR
    yield "DATA to the end", OPEN + f.frame(f.DATA, f.PADDED, 1, b"\x01"), Error.PROTOCOL_ERROR
    yield "HEADERS", f.frame(f.HEADERS, end, 1, too_much), Error.PROTOCOL_ERROR
    both = bytes([len(BLOCK) + 1]) + bytes(5) + BLOCK
    yield "priority too", f.frame(f.HEADERS, end | f.HAS_PRIORITY, 1, both), Error.PROTOCOL_ERROR


def windows() -> Iterator[Row]:
    """Windows that cannot be, and settings."""
    full, flow = f.MAX_WINDOW, Error.FLOW_CONTROL_ERROR
    yield "too much more", f.window_update(0, full), flow
    yield "too much in two", f.window_update(0, full - f.FIRST_WINDOW) + f.window_update(0, 1), flow
    grown = f.window_update(1, full - f.FIRST_WINDOW)
    grow = f.settings({Setting.INITIAL_WINDOW_SIZE: f.FIRST_WINDOW + 1})
    yield "a stream's by a setting", OPEN + grown + grow, flow
    for size in (0, 2**32 - 1):
        setting = f.settings({Setting.MAX_FRAME_SIZE: size})
        yield f"frames of {size}", setting, Error.PROTOCOL_ERROR


def blocks() -> Iterator[Row]:
    """Header blocks that cannot be decoded."""
    wrong = {
        "index 0": b"\x80",
        "index of nothing": b"\xff\x7f",
        "name of nothing": b"\x7f\x7f\x01a",
        "cut off in a number": b"\x88\xff",
        "cut off in a name": b"\x40\x05ab",
        "cut off before a value": b"\x40\x01a",
        "cut off in a value": b"\x40\x01a\x05b",
        "endless number": b"\xff" * 100,
        "table too large": b"\x3f\xe1\xff\x03" + BLOCK,
        "table's size behind a field": BLOCK + b"\x20",
        "a table's size again and again": b"\x20" * 1000 + BLOCK,
        "Huffman's end": b"\x40\x01a\x84\xff\xff\xff\xff",
        "Huffman's padding": b"\x40\x01a\x81\x00",
    }
    for name, block in wrong.items():
        block_frame = f.frame(f.HEADERS, f.END_HEADERS, 1, block)
        yield name, block_frame, Error.COMPRESSION_ERROR
        trailers = f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, block)
        yield f"{name}, in trailers", OPEN + trailers, Error.COMPRESSION_ERROR


def large_blocks() -> Iterator[Row]:
    """Header blocks that are not worth reading."""
    calm, piece = Error.ENHANCE_YOUR_CALM, bytes(8192)
    begun = f.frame(f.HEADERS, 0, 1, b"")
    continued = f.frame(f.CONTINUATION, 0, 1, piece)
    yield "continued", begun + continued * 9, calm
    yield "one frame", f.frame(f.HEADERS, f.END_HEADERS, 1, bytes(65537)), calm
    yield "its head", f.frame(f.HEADERS, f.END_HEADERS, 1, bytes(70000))[:9], calm
    too_much = f.frame(f.CONTINUATION, 0, 1, bytes(9000))
    yield "the head of one more", begun + continued * 3 + too_much[:9], calm
    yield "empty ones", begun + f.frame(f.CONTINUATION, 0, 1) * 65, calm
    yield "small ones", begun + f.frame(f.CONTINUATION, 0, 1, b"\x88") * 65, calm
    fields = [*f.request_fields(), *[(f"name-{n}", "v" * 400) for n in range(160)]]
    yield "decoded", f.header_frames(1, f.plain(fields)), calm
    # One entry of the table, four kilobytes long, said again and again by one byte.
    bomb = b"\x40\x01a" + b"\x7f\xb1\x1e" + b"v" * 4016 + b"\xbe" * 16000
    yield "bomb", f.frame(f.HEADERS, f.END_HEADERS, 1, f.plain(f.request_fields()) + bomb), calm


ROWS = [
    (f"{group.__name__}: {name}", sent, code)
    for group in (sizes, streams, order, padding, windows, blocks, large_blocks)
    for name, sent, code in group()
]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        *[(f.greeting() + row[1], row[2]) for row in ROWS],
        *[(f.PREFACE + row[1], row[2]) for row in first_frames()],
    ],
    ids=[*[row[0] for row in ROWS], *[f"first: {row[0]}" for row in first_frames()]],
)
async def test_a_peer_breaks_the_rules(host: "Host", sent: bytes, code: Error) -> None:
    await host.serve()
    other = await host.dial()
    client = await host.dial(sent)
    await host.ended_by_error(client, code)
    if (host.is_ours and client.seen(1).heads) or not host.probe.began.empty():
        assert await soon(host.probe.ended.get()) == "cancelled"
    assert await other.goes_on(1)


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"\x16\x03\x01\x02\x00", b""),
        (f.PREFACE[:-1] + b"x", b""),
    ],
    ids=["HTTP/1.1", "TLS", "almost"],
)
async def test_a_peer_that_speaks_something_else(host: "Host", first: bytes, told: bytes) -> None:
    await host.serve()
    client = await host.dial(first + bytes(24))
    rest = await client.rest()
    # A reader of HTTP/1 is told so; HTTP/2 is spoken to those alone that greet in it.
    assert rest.startswith(told)
    assert bool(rest) == bool(told)


@pytest.mark.parametrize("first", [b"", f.PREFACE[:10], f.PREFACE[:-1]])
async def test_a_peer_that_says_nothing(host: "Host", first: bytes) -> None:
    await host.serve(Limits(handshake_timeout_s=0.05))
    client = await host.dial(first)
    assert await client.rest() == b""


async def test_a_peer_that_has_greeted_may_say_nothing(host: "Host") -> None:
    # Its greeting has to come in that time.
    await host.serve(Limits(handshake_timeout_s=0.5))
    silent, greeted = await host.dial(b""), await host.dial()
    await silent.rest()
    assert (await greeted.ask(f.call(1, payload=b"late"))).messages == [b"late"]


async def test_goaway_says_which_stream_was_the_last(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.ask(f.call(1) + f.call(3), stream=3)
    await client.send(f.window_update(0, 0))
    await host.ended_by_error(client, Error.PROTOCOL_ERROR)
    last = client.frames[-1]
    assert isinstance(last, GoAwayFrame)
    assert last.last_stream_id == 3
