"""A connection leaves the event loop to others, however much its client sends at once."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

from hyperframe.frame import PingFrame

from services.grpc_server.http2.connection import Connection
from services.grpc_server.http2.frames import PING, PREFACE, SETTINGS, frame
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import Limits
from services.grpc_server.request.request_memory import RequestMemory
from services.grpc_server.server_options import OverloadStatus, ServerOptions
from tests.unit.services.grpc_server.http2.line import Line

# Of one read: far more than a time slice has time for.
NUM_PINGS = 10_000


class PausedLine(Line):
    """Knows whether it reads."""

    def __init__(self, taken: socket.socket) -> None:
        super().__init__()
        self.taken, self.is_paused = taken, False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As every transport."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of a socket that is not connected."""
        return {"socket": self.taken, "peername": ("127.0.0.1", 1)}[name]

    def is_closing(self) -> bool:
        """Never here."""
        return False

    def pause_reading(self) -> None:
        """No more reads come."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Reads come again."""
        self.is_paused = False


async def test_a_read_of_more_than_a_time_slice_is_parsed_in_several_turns_of_the_loop() -> None:
    options = ServerOptions(
        limits=Limits(free_frames=NUM_PINGS, max_ping_strikes=NUM_PINGS),
        take=None,
        check=None,
        on_unhandled=lambda _: None,
        memory=RequestMemory(1 << 20, 1 << 20),
        unread=UnreadAnswers(1 << 30),
        overload=OverloadStatus(),
    )
    server: Any = SimpleNamespace(
        options=options, handler=lambda _: None, connection_opened=lambda _: True
    )
    with socket.socket() as taken:
        line, connection = PausedLine(taken), Connection(server)
        connection.connection_made(line)
    pings = b"".join(frame(PING, 0, 0, each.to_bytes(8, "big")) for each in range(NUM_PINGS))
    for sent in (PREFACE, frame(SETTINGS, 0, 0), pings):
        connection.get_buffer(-1)[: len(sent)] = sent
        connection.buffer_updated(len(sent))
    assert line.is_paused
    num_turns = 0
    while line.is_paused:
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 1
    await asyncio.sleep(0)
    acknowledged = [int.from_bytes(f.opaque_data) for f in line.frames() if type(f) is PingFrame]
    assert acknowledged == list(range(NUM_PINGS))
