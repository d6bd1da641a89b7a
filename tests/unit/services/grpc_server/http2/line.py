"""A transport that keeps what is written to it, and a stream that counts its ends."""

import asyncio
from collections.abc import Iterable

from hyperframe.frame import DataFrame, Frame

from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.http2.send_stream import SendStream


class Line(asyncio.Transport):
    """Takes all; keeps what was written and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.num_writes, self.num_held = b"", 0, 0
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.written += bytes(data)
        self.num_writes += 1

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Keep them."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """As a test wants it."""
        return self.num_held

    def abort(self) -> None:
        """Note it."""
        self.is_aborted = True

    def frames(self) -> list[Frame]:
        """What was written, read by another library."""
        rest, found = memoryview(self.written), []
        while rest:
            each, size = Frame.parse_frame_header(rest[:9])
            each.parse_body(rest[9 : 9 + size])
            found.append(each)
            rest = rest[9 + size :]
        return found

    def sizes(self) -> list[tuple[int, int]]:
        """The stream and the size of each frame of data."""
        return [(f.stream_id, len(f.data)) for f in self.frames() if isinstance(f, DataFrame)]


class Stream(SendStream):
    """Counts its ends."""

    __slots__ = ("num_ended",)

    def __init__(self, writer: FrameWriter, stream_id: int = 1) -> None:
        super().__init__(stream_id, writer.initial_window)
        self.num_ended = 0

    def sent(self) -> None:
        """Count it."""
        self.num_ended += 1
