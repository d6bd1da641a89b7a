"""Which connection ends when clients leave too many answers unread, and what counts as unread."""

import pytest

from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.http2.frames import rst_stream
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import DEFAULT_WINDOW
from services.grpc_server.request.messages import PREFIX
from tests.unit.services.grpc_server.http2.line import Line, Stream

MOST = 1_000_000
MESSAGE = 200_000
ALL = MESSAGE + PREFIX.size


class Client:
    """One connection whose client reads only what a test grants."""

    def __init__(self, unread: UnreadAnswers) -> None:
        self.line = Line()
        self.writer = FrameWriter(self.line, unread)
        self._stream_id = 1

    def ask(self, num_bytes: int = MESSAGE) -> Stream:
        """Be answered on a new stream."""
        stream = Stream(self.writer, self._stream_id)
        self._stream_id += 2
        self.writer.answer(stream, bytes(num_bytes))
        return stream

    def read(self, num_bytes: int, *streams: Stream) -> None:
        """Grant so many bytes more, to the connection and each stream."""
        self.writer.grow(num_bytes)
        for stream in streams:
            self.writer.grow_stream(stream, num_bytes)


@pytest.fixture
def unread() -> UnreadAnswers:
    return UnreadAnswers(MOST)


async def test_a_message_counts_until_its_last_byte_is_sent(unread: UnreadAnswers) -> None:
    client = Client(unread)
    stream = client.ask()
    # Without the prefix, which is sent.
    assert (unread.num_bytes, client.writer.num_unread) == (MESSAGE, MESSAGE)
    client.read(ALL - DEFAULT_WINDOW - 1, stream)
    assert (stream.num_pending, unread.num_bytes) == (1, MESSAGE)
    client.read(1, stream)
    assert (stream.num_ended, unread.num_bytes) == (1, 0)


async def test_what_is_sent_at_once_is_not_counted(unread: UnreadAnswers) -> None:
    client = Client(unread)
    assert client.ask(100).num_ended == 1
    assert unread.num_bytes == 0


async def test_a_discarded_answer_is_not_counted_in_whole_or_in_part(unread: UnreadAnswers) -> None:
    client = Client(unread)
    streams = [client.ask(), client.ask()]
    client.read(1000, *streams)
    for stream in streams:
        client.writer.discard(stream)
    assert (unread.num_bytes, client.writer.num_unread) == (0, 0)


async def test_the_slowest_reader_ends_and_not_the_largest(unread: UnreadAnswers) -> None:
    reading, still = Client(unread), Client(unread)
    for _ in range(3):
        # One that reads along, with three quarters of what may wait.
        stream = reading.ask()
        reading.read(100_000, stream)
    kept = still.ask()
    assert not reading.line.is_aborted
    assert not still.line.is_aborted
    reading.ask()
    assert (still.line.is_aborted, still.writer.is_unread) == (True, True)
    assert not reading.line.is_aborted
    assert unread.num_bytes == reading.writer.num_unread
    # What is released afterwards was taken from the count with the connection.
    still.writer.discard(kept)
    still.writer.connection_lost()
    assert unread.num_bytes == reading.writer.num_unread


async def test_what_a_client_read_long_ago_does_not_count(unread: UnreadAnswers) -> None:
    once, lately = Client(unread), Client(unread)
    for client in (once, lately):
        stream = client.ask()
        client.read(ALL - DEFAULT_WINDOW, stream)
        client.writer.mark_time()
    once.writer.mark_time()
    lately.writer.mark_time()
    stream = lately.ask()
    lately.read(MESSAGE // 2, stream)
    for client in (once, once, lately, lately):
        client.ask()
    assert once.line.is_aborted
    assert not lately.line.is_aborted


async def test_a_single_answer_may_be_larger_than_all_that_may_wait(
    unread: UnreadAnswers,
) -> None:
    client = Client(unread)
    client.ask(2 * MOST)
    assert not client.line.is_aborted
    assert client.writer.is_behind
    other = Client(unread)
    other.ask()
    assert client.line.is_aborted
    assert not other.line.is_aborted


async def test_what_handlers_hold_counts_for_their_connection(unread: UnreadAnswers) -> None:
    client, other = Client(unread), Client(unread)
    client.writer.hold(MOST)
    assert client.writer.is_behind
    assert not other.writer.is_behind
    other.writer.hold(1)
    assert client.line.is_aborted
    client.writer.hold(-MOST)
    other.writer.hold(-1)
    assert unread.num_bytes == 0


async def test_control_frames_that_are_not_read_end_a_connection_with_its_count(
    unread: UnreadAnswers,
) -> None:
    client = Client(unread)
    client.writer.pause()
    client.ask()
    client.line.num_held = (8 << 20) + 1
    client.writer.control(rst_stream(1, 0))  # type: ignore[arg-type]
    client.writer.flush()
    assert client.line.is_aborted
    assert unread.num_bytes == 0
