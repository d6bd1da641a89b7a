"""The decoder: whole frames, in order, however the bytes are split."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.frame_decoder import FrameDecoder
from services.contracts.transport.frames import MAX_META_BYTES, Frame, Kind, header

LARGE = 65_536
LIMIT = 1 << 20


def _wire(frame: Frame) -> bytes:
    head = header(frame.kind, frame.request_id, len(frame.meta), len(frame.payload))
    return head + frame.meta + frame.payload


def _feed(decoder: FrameDecoder, chunks: Iterable[bytes]) -> list[Frame]:
    """Feeds chunks as a transport does: never more than the lent buffer takes."""
    frames = []
    for chunk in chunks:
        while chunk:
            buffer = decoder.get_buffer()
            taken = min(len(buffer), len(chunk))
            assert taken > 0
            buffer[:taken] = chunk[:taken]
            frames += decoder.advance(taken)
            chunk = chunk[taken:]
    return frames


def _frame(request_id: int, payload_size: int, meta_size: int = 3) -> Frame:
    payload = bytes([request_id % 251]) * payload_size
    return Frame(Kind.INFER, request_id, b"m" * meta_size, payload)


SIZES = st.sampled_from([0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE, 5 * LARGE])
METAS = st.sampled_from([0, 1, 18, MAX_META_BYTES])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SIZES, METAS), max_size=6), st.data())
def test_any_split_gives_the_same_frames(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    frames = [_frame(number, *size) for number, size in enumerate(sizes)]
    wire = b"".join(map(_wire, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    edges = [0, *cuts, len(wire)]
    chunks = [wire[a:b] for a, b in itertools.pairwise(edges)]
    assert _feed(FrameDecoder(LIMIT), chunks) == frames


def test_byte_by_byte() -> None:
    frames = [_frame(1, 40), _frame(2, 0, 0), _frame(3, LARGE + 5), _frame(4, 7)]
    wire = b"".join(map(_wire, frames))
    assert _feed(FrameDecoder(LIMIT), (bytes([b]) for b in wire)) == frames


def test_many_frames_in_one_read() -> None:
    frames = [_frame(number, 100) for number in range(500)]
    assert _feed(FrameDecoder(LIMIT), [b"".join(map(_wire, frames))]) == frames


def test_a_large_payload_is_received_into_its_own_buffer() -> None:
    """So a request of megabytes is not copied once more."""
    decoder = FrameDecoder(LIMIT)
    wire = _wire(_frame(1, 5 * LARGE))
    assert _feed(decoder, [wire[:100]]) == []
    assert len(decoder.get_buffer()) == len(wire) - 100


def test_memory_is_taken_as_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that announces gigabytes takes no more than a first piece."""
    monkeypatch.setattr("services.contracts.transport.large_buffer.FIRST_BYTES", 4 * LARGE)
    decoder, frames = FrameDecoder(LIMIT), [_frame(1, 15 * LARGE + 1), _frame(2, 2 * LARGE)]
    wire = b"".join(map(_wire, frames))
    assert _feed(decoder, [wire[:100]]) == []
    assert len(decoder.get_buffer()) < 4 * LARGE
    assert _feed(decoder, [wire[100 : 5 * LARGE]]) == []
    assert len(decoder.get_buffer()) < 4 * LARGE
    assert _feed(decoder, [wire[5 * LARGE :]]) == frames


@pytest.mark.parametrize("size", [LARGE + 4, 5 * LARGE - 1, 15 * LARGE + 8])
def test_a_large_payload_ends_at_an_aligned_place(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that engines need no copy of a tensor, which is the last of its message."""
    monkeypatch.setattr("services.contracts.transport.large_buffer.FIRST_BYTES", 4 * LARGE)
    ((*_, payload),) = _feed(FrameDecoder(LIMIT), [_wire(_frame(1, size))])
    assert (np.frombuffer(payload, np.uint8).ctypes.data + size) % 64 == 0


def test_frames_own_their_bytes() -> None:
    """What comes later does not change a frame that was handed out."""
    decoder = FrameDecoder(LIMIT)
    (first,) = _feed(decoder, [_wire(_frame(1, 50))])
    _feed(decoder, [_wire(_frame(2, 50))])
    assert first == _frame(1, 50)


def test_an_oversize_frame_is_refused_before_its_payload_comes() -> None:
    decoder = FrameDecoder(max_payload_bytes=100)
    wire = _wire(_frame(1, 100)) + header(Kind.INFER, 2, 0, 101)
    with pytest.raises(InvalidRequestError, match="at most 100"):
        _feed(decoder, [wire])


def test_the_limit_may_rise_between_two_frames_of_one_read() -> None:
    decoder = FrameDecoder(max_payload_bytes=10)
    wire = _wire(_frame(1, 10)) + _wire(_frame(2, 50))
    decoder.get_buffer()[: len(wire)] = wire
    frames = decoder.advance(len(wire))
    assert next(frames) == _frame(1, 10)
    decoder.max_payload_bytes = 50
    assert list(frames) == [_frame(2, 50)]


@given(st.binary(min_size=16, max_size=64))
def test_random_bytes_raise_one_error_or_wait_for_more(data: bytes) -> None:
    decoder = FrameDecoder(LIMIT)
    try:
        frames = _feed(decoder, [data])
    except InvalidRequestError:
        return
    assert all(frame.kind in Kind for frame in frames)
    assert len(decoder.get_buffer()) > 0
