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
        # One that reads along, with more than half of what may wait.
        stream = reading.ask()
        reading.read(100_000, stream)
    kept = still.ask(2 * MESSAGE)
    assert not still.line.is_aborted
    assert reading.writer.admits(MESSAGE)
    assert (still.line.is_aborted, still.writer.is_unread) == (True, True)
    assert not reading.line.is_aborted
    assert unread.num_bytes == reading.writer.num_unread
    # What is released afterwards was taken from the count with the connection.
    still.writer.discard(kept)
    still.writer.connection_lost()
    assert unread.num_bytes == reading.writer.num_unread


async def test_the_slowest_reader_itself_is_refused_more(unread: UnreadAnswers) -> None:
    reading, still = Client(unread), Client(unread)
    reading.read(100_000, reading.ask())
    still.ask(3 * MESSAGE)
    assert not still.writer.admits(2 * MESSAGE)
    assert not any(client.line.is_aborted for client in (reading, still))
    assert still.writer.admits(1000)


async def test_what_a_client_read_long_ago_does_not_count(unread: UnreadAnswers) -> None:
    once, lately = Client(unread), Client(unread)
    once.read(2 * ALL, once.ask(2 * MESSAGE))
    for client in (once, lately):
        client.writer.mark_time()
        client.writer.mark_time()
    lately.read(1000, lately.ask())
    for client in (once, lately):
        client.ask(2 * MESSAGE)
    assert lately.writer.admits(MESSAGE)
    assert once.line.is_aborted
    assert not lately.line.is_aborted


async def test_an_answer_larger_than_all_that_may_wait_ends_none_of_small_ones(
    unread: UnreadAnswers,
) -> None:
    large = Client(unread)
    assert large.writer.admits(2 * MOST)
    others = [Client(unread) for _ in range(3)]
    for client in others:
        client.ask(70_000)
    assert not large.writer.admits(2 * MOST)
    assert not any(client.line.is_aborted for client in (large, *others))


async def test_many_that_stand_still_end_before_one_that_reads_much(unread: UnreadAnswers) -> None:
    still = [Client(unread) for _ in range(9)]
    for client in still:
        client.ask(70_000)
    reading = Client(unread)
    reading.read(100_000, reading.ask())
    assert reading.writer.admits(MESSAGE)
    assert [client.line.is_aborted for client in still].count(True) == 1
    assert not reading.line.is_aborted


async def test_what_handlers_hold_counts_for_their_connection(unread: UnreadAnswers) -> None:
    client, other = Client(unread), Client(unread)
    client.writer.hold(MOST)
    other.ask(100)
    assert other.writer.admits(MESSAGE)
    assert client.line.is_aborted
    client.writer.hold(-MOST)
    assert unread.num_bytes == 0


async def test_a_message_counts_while_the_transport_has_the_last_of_it(
    unread: UnreadAnswers,
) -> None:
    client = Client(unread)
    client.line.num_held = 50
    client.read(ALL, client.ask())
    assert unread.num_bytes == MESSAGE
    client.line.num_held = 0
    other = Client(unread)
    assert other.writer.admits(MOST)
    assert unread.num_bytes == 0
    assert not client.line.is_aborted


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
