"""How frames are cut out of what is read, and when a connection has had its turn."""

import pytest

from services.grpc_server.headers.header_fragments import HeaderFragments
from services.grpc_server.http2.flood import FloodGuard
from services.grpc_server.http2.frames import PING, ErrorCode, Http2ConnectionError, frame
from services.grpc_server.http2.reader import FrameReader, new_read_buffer

BURST = 1000


class Frames:
    """Takes frames; each takes it so many seconds.

    Attributes:
        now_s: of its clock.
        seen: the payloads of frames, in their order.
    """

    def __init__(self, frame_s: float) -> None:
        self.now_s, self.frame_s = 100.0, frame_s
        self.seen: list[int] = []
        self.guard = FloodGuard(BURST, 0)
        self.header_fragments = HeaderFragments(lambda *_: None)
        self.reader = FrameReader(self, new_read_buffer(), self.guard, lambda: self.now_s)

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """See `Receiver`."""
        self.seen.append(int.from_bytes(payload, "big"))
        self.now_s += self.frame_s

    def data(self, stream_id: int, size: int, *, num_bytes: int, is_last: bool) -> None:
        """See `Receiver`."""
        self.now_s += self.frame_s

    def read(self, sent: bytes) -> bool:
        """As the event loop does it."""
        room = self.reader.get_buffer()
        room[: len(sent)] = sent
        return self.reader.advance(len(sent))


def pings(first: int, last: int) -> bytes:
    return b"".join(frame(PING, 0, 0, each.to_bytes(8, "big")) for each in range(first, last))


def test_frames_that_take_long_wait_for_the_next_turn() -> None:
    frames = Frames(frame_s=0.001)
    cut = pings(100, 101)
    assert not frames.read(pings(0, 100) + cut[:10])
    num_seen = len(frames.seen)
    assert 0 < num_seen < 10
    num_turns = 1
    while not frames.reader.resume():
        num_turns += 1
    assert frames.seen == list(range(100))
    assert num_turns > 10
    # What had come of the last one is not lost.
    frames.now_s += 1
    assert frames.read(cut[10:])
    assert frames.seen == list(range(101))


def test_reads_that_follow_each_other_at_once_are_one_turn() -> None:
    """An event loop reads on while a socket fills its buffer."""
    frames = Frames(frame_s=0.0009)
    assert [frames.read(pings(each, each + 1)) for each in range(3)] == [True, True, False]
    assert frames.reader.resume()
    frames.now_s += 0.001
    assert [frames.read(pings(each, each + 1)) for each in range(3)] == [True, True, False]


def test_quick_frames_have_one_turn() -> None:
    frames = Frames(frame_s=0.0)
    assert frames.read(pings(0, BURST))
    assert len(frames.seen) == BURST


@pytest.mark.parametrize("kind", [PING, 0, 99])
def test_every_frame_is_counted(kind: int) -> None:
    frames = Frames(frame_s=0.0)
    sent = frame(kind, 0, 1, b"x")
    assert frames.read(sent * BURST)
    with pytest.raises(Http2ConnectionError) as fault:
        frames.read(sent)
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_connections_share_a_buffer() -> None:
    one, other = Frames(0.0), Frames(0.0)
    buffer = new_read_buffer()
    for each in (one, other):
        each.reader = FrameReader(each, buffer, each.guard, lambda: 0.0)
    sent = pings(7, 8)
    one.read(sent[:12])
    other.read(pings(1, 50))
    one.read(sent[12:])
    assert one.seen == [7]
