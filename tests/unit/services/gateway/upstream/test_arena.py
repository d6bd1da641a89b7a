"""Slots of the arena: taken, lent, dropped anywhere, and back when nobody looks at them."""

import gc
import threading
from collections.abc import Iterator
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.transport.lent_memory import MAX_SLOT_BYTES, UNIT_BYTES
from services.gateway.upstream.arena import (
    MIN_ARENA_BYTES,
    RequestArena,
    request_arena,
    slot_of,
)

ALIGNMENT = 64
NUM_BYTES = 2 * MIN_ARENA_BYTES
LARGEST = MAX_SLOT_BYTES - ALIGNMENT
EDGES = [
    1,
    63,
    64,
    65,
    *(UNIT_BYTES + step for step in (-65, -64, -63, -1, 0, 1)),
    *(2 * UNIT_BYTES + step for step in (-64, -63, 0, 1)),
    602_112,
    MAX_SLOT_BYTES // 2 + 1,
    LARGEST - 1,
    LARGEST,
]


class Replica:
    """Looks at what a test says."""

    def __init__(self) -> None:
        self.units: set[int] = set()
        self.num_units, self.is_closed = 0, False

    def close(self) -> None:
        self.is_closed = True

    def holds(self, unit: int) -> bool:
        return unit in self.units

    def borrow(self, payload: memoryview) -> int:
        """What the link does when it lends; the slot's first unit."""
        slot = slot_of(payload)
        assert slot is not None
        assert slot.block is not None
        slot.block.lent_to(self)
        self.units.add(slot.block.unit)
        return slot.block.unit


@pytest.fixture
def replica() -> Replica:
    return Replica()


@pytest.fixture
def arena(replica: Replica) -> Iterator[RequestArena]:
    """Thirty-two megabytes that one replica can read."""
    arena = RequestArena(NUM_BYTES)
    arena.consumers.add(replica)
    yield arena
    arena.close()


def taken(arena: RequestArena, size: int) -> memoryview:
    """A slot, which there must be."""
    payload = arena.take(size)
    assert payload is not None
    return payload


def place(payload: memoryview) -> tuple[int, int]:
    """Where a slot begins and ends in the arena."""
    slot = slot_of(payload)
    assert slot is not None
    return slot.begin, slot.begin + slot.nbytes


@pytest.mark.parametrize("size", EDGES)
def test_a_slot_of_any_size_lies_inside_its_block_and_ends_aligned(
    arena: RequestArena, size: int
) -> None:
    one, two = taken(arena, size), arena.take(size)
    begin, end = place(one)
    assert (len(one), one.readonly, end % ALIGNMENT, end - begin) == (size, False, 0, size)
    assert np.frombuffer(one, np.uint8).ctypes.data % ALIGNMENT == begin % ALIGNMENT
    slot = slot_of(one)
    assert slot is not None
    assert slot.block is not None
    first = slot.block.unit * UNIT_BYTES
    assert first <= begin < first + ALIGNMENT
    assert end <= first + (UNIT_BYTES * slot.block.num_units) <= arena.num_bytes
    if two is not None:
        one[:], two[:] = b"\1" * size, b"\2" * size
        assert (one[0], one[-1], two[0], two[-1]) == (1, 1, 2, 2)
    del one, two, slot
    assert arena.num_taken_bytes == 0


@pytest.mark.parametrize("size", [-1, 0, LARGEST + 1, MAX_SLOT_BYTES, 1 << 40])
def test_what_no_slot_can_be_is_left_to_others(arena: RequestArena, size: int) -> None:
    assert arena.take(size) is None


def test_there_is_no_use_without_a_replica_or_after_the_end(
    arena: RequestArena, replica: Replica
) -> None:
    slot = taken(arena, 100)
    arena.consumers.discard(replica)
    assert (arena.take(100), replica.is_closed) == (None, False)
    arena.lend_to(replica)
    arena.close()
    assert (arena.take(100), replica.is_closed) == (None, True)
    # One whose welcome comes too late.
    arena.lend_to(Replica())
    assert arena.take(100) is None
    slot[:] = bytes(100)
    arena.close()


def test_a_full_arena_gives_none_and_then_what_came_back(arena: RequestArena) -> None:
    num = NUM_BYTES // UNIT_BYTES
    slots = [taken(arena, UNIT_BYTES - ALIGNMENT) for _ in range(num)]
    assert len({place(slot) for slot in slots}) == num
    assert (arena.num_taken_bytes, arena.take(1)) == (NUM_BYTES, None)
    last = place(slots.pop())
    again = taken(arena, UNIT_BYTES - ALIGNMENT)
    assert place(again) == last
    del again
    slots.clear()
    large = [taken(arena, LARGEST), taken(arena, LARGEST)]
    assert arena.take(1) is None
    large.clear()
    assert arena.num_taken_bytes == 0


def test_a_lent_slot_is_kept_until_every_replica_let_go(
    arena: RequestArena, replica: Replica
) -> None:
    other, payload = Replica(), taken(arena, 100_000)
    unit = replica.borrow(payload)
    other.borrow(payload)
    del payload
    for consumer in (replica, other):
        assert arena.num_taken_bytes == 2 * UNIT_BYTES
        assert consumer.num_units == 2
        consumer.units.discard(unit)
    assert arena.num_taken_bytes == 0
    assert (replica.num_units, other.num_units) == (0, 0)


def test_a_full_arena_finds_what_came_back(arena: RequestArena, replica: Replica) -> None:
    """Not all loans are looked at each time."""
    slots = [taken(arena, 1) for _ in range(arena.num_bytes // UNIT_BYTES)]
    units = [replica.borrow(slot) for slot in slots]
    num = len(slots)
    slots.clear()
    assert arena.take(1) is None
    replica.units.discard(units[-1])
    found = next(slot for _ in range(num) if (slot := arena.take(1)) is not None)
    assert place(found)[0] // UNIT_BYTES == units[-1]
    assert [arena.take(1) for _ in range(num)] == [None] * num
    assert replica.num_units == num - 1


def test_any_part_keeps_the_whole_slot(arena: RequestArena) -> None:
    payload = taken(arena, 100_000)
    parts = [payload[7:9], np.frombuffer(payload, np.uint8)[5:], payload.cast("B"), payload.obj]
    del payload
    while parts:
        assert arena.num_taken_bytes == 2 * UNIT_BYTES
        parts.pop()
    assert arena.num_taken_bytes == 0


def test_only_a_whole_slot_is_known_as_one(arena: RequestArena) -> None:
    payload = taken(arena, 1000)
    assert slot_of(payload) is payload.obj
    assert slot_of(payload[:]) is payload.obj
    strangers = [payload[1:], payload[:-1], payload[:0], bytes(payload), memoryview(b"x")]
    whole = [np.frombuffer(payload, np.uint8).data, bytearray(payload)]
    assert [slot_of(each) for each in (*strangers, *whole)] == [None] * 7


def test_a_view_of_a_slot_is_no_slot(arena: RequestArena) -> None:
    """Its end gives nothing back: the block is the slot's alone."""
    payload = taken(arena, 1000)
    view = payload.obj[:]  # type: ignore[index]
    assert view.block is None
    del view
    assert arena.num_taken_bytes == UNIT_BYTES


def test_garbage_in_cycles_comes_back_even_while_another_is_taken(arena: RequestArena) -> None:
    class Knot:
        def __init__(self, payload: memoryview) -> None:
            self.payload, self.itself = payload, self

    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(NUM_BYTES // UNIT_BYTES):
            Knot(taken(arena, 1))
        assert arena.take(1) is None
    finally:
        if was_enabled:
            gc.enable()
    gc.collect()
    assert arena.num_taken_bytes == 0


def test_slots_dropped_by_other_threads_come_back(arena: RequestArena) -> None:
    handed: SimpleQueue[memoryview | None] = SimpleQueue()

    def drop() -> None:
        while handed.get() is not None:
            pass

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        handed.put(arena.take(1 + 97 * number % 300_000) or memoryview(b""))
    for _ in threads:
        handed.put(None)
    for thread in threads:
        thread.join(30)
    assert arena.num_taken_bytes == 0


@pytest.mark.parametrize("num_bytes", [0, 1, MIN_ARENA_BYTES - 1])
def test_too_little_for_the_largest_slot_is_none(num_bytes: int) -> None:
    assert request_arena(num_bytes) is None


def test_an_arena_is_a_multiple_of_its_least_size() -> None:
    arena = request_arena(2 * MIN_ARENA_BYTES + 12_345)
    assert arena is not None
    assert (arena.num_bytes, arena.num_taken_bytes) == (2 * MIN_ARENA_BYTES, 0)
    arena.close()


def test_a_kernel_without_memory_to_share_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no such call")

    monkeypatch.setattr("os.memfd_create", refuse)
    assert request_arena(MIN_ARENA_BYTES) is None
    assert "no memory to share: no such call" in caplog.text


# Below zero: a slot is dropped.
STEPS = st.lists(st.integers(1, LARGEST) | st.integers(-60, -1), max_size=60)


@given(STEPS)
def test_slots_never_overlap_and_are_found_if_there_is_room(steps: list[int]) -> None:
    arena = RequestArena(MIN_ARENA_BYTES)
    arena.consumers.add(Replica())
    slots: list[memoryview] = []
    for step in steps:
        if step > 0 and (slot := arena.take(step)) is not None:
            slots.append(slot)
            del slot
        elif step > 0:
            assert step + ALIGNMENT > _longest_gap(arena, slots)
        elif slots:
            slots.pop(step % len(slots))
        ends = sorted(map(place, slots))
        assert all(left[1] <= right[0] for left, right in pairwise(ends))
    slots.clear()
    assert arena.num_taken_bytes == 0
    arena.close()


def _longest_gap(arena: RequestArena, slots: list[memoryview]) -> int:
    """Bytes of the largest row of units that no slot covers."""
    ends = [
        (begin // UNIT_BYTES, -(-end // UNIT_BYTES)) for begin, end in sorted(map(place, slots))
    ]
    edges = [(0, 0), *ends, (arena.num_bytes // UNIT_BYTES, 0)]
    return UNIT_BYTES * max(right[0] - left[1] for left, right in pairwise(edges))
