"""Windows of answers, and what a transport that takes no more holds up."""

import asyncio

import grpc
import pytest
from hyperframe.frame import HeadersFrame

from services.grpc_server.headers.response_headers import trailers_block
from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.http2.frames import Http2ConnectionError, rst_stream
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import DEFAULT_WINDOW, MAX_WINDOW
from tests.unit.services.grpc_server.http2.line import Line, Stream

END = trailers_block(grpc.StatusCode.OK)
LARGE = 200_000


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
async def writer(line: Line) -> FrameWriter:
    """With the windows that a connection begins with."""
    return FrameWriter(line, UnreadAnswers(1 << 30))


async def turn() -> None:
    """The end of this turn of the event loop."""
    await asyncio.sleep(0)


async def test_frames_of_a_turn_leave_in_one_write_in_their_order(
    line: Line, writer: FrameWriter
) -> None:
    streams = [Stream(writer, number) for number in (1, 3, 5)]
    for stream in streams:
        writer.answer(stream, b"answer")
    writer.control(rst_stream(7, 0))  # type: ignore[arg-type]
    assert (line.num_writes, [s.num_ended for s in streams]) == (0, [1, 1, 1])
    await turn()
    assert line.num_writes == 1
    assert [f.stream_id for f in line.frames()] == [1, 1, 1, 3, 3, 3, 5, 5, 5, 7]


async def test_nothing_is_sent_beyond_the_windows(line: Line, writer: FrameWriter) -> None:
    stream = Stream(writer)
    writer.answer(stream, bytes(LARGE))
    assert sum(size for _, size in line.sizes()) == DEFAULT_WINDOW
    writer.grow(LARGE)
    assert sum(size for _, size in line.sizes()) == DEFAULT_WINDOW
    assert writer.grow_stream(stream, 10)
    assert sum(size for _, size in line.sizes()) == DEFAULT_WINDOW + 10
    assert stream.num_ended == 0
    assert writer.grow_stream(stream, LARGE)
    assert sum(size for _, size in line.sizes()) == LARGE + 5
    assert (stream.num_ended, max(size for _, size in line.sizes())) == (1, 16_384)
    assert isinstance(line.frames()[-1], HeadersFrame)


async def test_streams_take_turns(line: Line, writer: FrameWriter) -> None:
    writer.pause()
    for number in (1, 3):
        writer.answer(Stream(writer, number), bytes(20_000))
    writer.resume()
    assert line.sizes() == [(1, 16_384), (3, 16_384), (1, 3621), (3, 3621)]


async def test_a_small_answer_does_not_overtake_what_waits(line: Line, writer: FrameWriter) -> None:
    large, small = Stream(writer, 1), Stream(writer, 3)
    writer.answer(large, bytes(LARGE))
    writer.answer(small, b"small")
    assert small.num_ended == 0
    writer.grow(10)
    assert (line.sizes()[-1], small.num_ended) == ((3, 10), 1)


async def test_windows_may_shrink_below_nothing(line: Line, writer: FrameWriter) -> None:
    stream = Stream(writer)
    writer.answer(stream, bytes(LARGE))
    writer.grow(MAX_WINDOW - DEFAULT_WINDOW)
    writer.set_initial_window(0, [stream])
    assert stream.window == -DEFAULT_WINDOW
    assert writer.grow_stream(stream, DEFAULT_WINDOW)
    assert sum(size for _, size in line.sizes()) == DEFAULT_WINDOW
    writer.set_initial_window(7, [stream])
    assert line.sizes()[-1] == (1, 7)


async def test_windows_that_overflow(writer: FrameWriter) -> None:
    stream = Stream(writer)
    assert not writer.grow_stream(stream, MAX_WINDOW)
    with pytest.raises(Http2ConnectionError):
        writer.grow(MAX_WINDOW)
    with pytest.raises(Http2ConnectionError):
        writer.set_initial_window(MAX_WINDOW, [stream])


async def test_a_stream_that_is_discarded_sends_nothing_more(
    line: Line, writer: FrameWriter
) -> None:
    stream = Stream(writer)
    writer.begin(stream)
    writer.add(stream, bytes(2 * LARGE))
    waiting = asyncio.create_task(stream.drained())
    await turn()
    assert not waiting.done()
    before = line.sizes()
    writer.discard(stream)
    await waiting
    writer.finish(stream, END)
    writer.grow(LARGE)
    assert writer.grow_stream(stream, LARGE)
    await turn()
    assert (line.sizes(), stream.num_ended) == (before, 1)


async def test_a_client_that_reads_nothing_is_disconnected(line: Line, writer: FrameWriter) -> None:
    writer.pause()
    line.num_held = 8 << 20
    writer.control(b"at the limit")
    writer.flush()
    assert not line.is_aborted
    line.num_held += 1
    writer.control(b"above it")
    writer.flush()
    assert line.is_aborted
    writer.control(b"after the end")
    writer.flush()
    assert line.written == b"at the limitabove it"


async def test_closing_writes_what_waits_and_nothing_more(line: Line, writer: FrameWriter) -> None:
    writer.control(b"what waits")
    writer.close()
    writer.control(b"more")
    writer.answer(Stream(writer), b"answer")
    await turn()
    assert line.written == b"what waits"
