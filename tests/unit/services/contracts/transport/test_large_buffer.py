"""Memory for one payload: whole however it comes, taken bit by bit, aligned at its end."""

import numpy as np
import pytest

from services.contracts.transport import large_buffer
from services.contracts.transport.large_buffer import LargeBuffer

FIRST = 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth is tried without megabytes."""
    monkeypatch.setattr(large_buffer, "FIRST_BYTES", FIRST)


def fill(buffer: LargeBuffer, rest: bytes, step: int) -> None:
    """As a transport does: reads no more than there is room for."""
    while rest:
        taken = min(step, len(rest), len(buffer.room))
        assert taken > 0
        buffer.room[:taken] = rest[:taken]
        buffer.advance(taken)
        rest = rest[taken:]


@pytest.mark.parametrize("size", [1, FIRST - 1, FIRST, FIRST + 1, 5 * FIRST + 3])
@pytest.mark.parametrize("step", [7, FIRST, 10 * FIRST])
@pytest.mark.parametrize("num_first", [0, 1, FIRST])
def test_the_payload_is_what_came(size: int, step: int, num_first: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    first = memoryview(payload)[:num_first]
    buffer = LargeBuffer(size, first)
    buffer.advance(0)
    fill(buffer, payload[num_first:], step)
    assert (bytes(buffer.payload), len(buffer.room)) == (payload, 0)
    assert (np.frombuffer(buffer.payload, np.uint8).ctypes.data + size) % 64 == 0


def test_memory_is_taken_as_bytes_come() -> None:
    buffer = LargeBuffer(1 << 30, memoryview(b"x"))
    assert len(buffer.room) == FIRST - 1
    fill(buffer, bytes(FIRST - 1), FIRST)
    assert len(buffer.room) == FIRST


def test_what_was_lent_stays_as_it_is_when_it_grows() -> None:
    buffer = LargeBuffer(3 * FIRST, memoryview(b"first"))
    lent = buffer.room
    fill(buffer, b"y" * (FIRST - 5), FIRST)
    fill(buffer, b"z" * FIRST, FIRST)
    assert bytes(lent) == b"y" * (FIRST - 5)
