"""The replica's end of lent memory: views, and the ledger."""

import mmap
import os
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.lent_memory import LOST, UNIT_BYTES, peers_memory, sealed_memory
from services.replica.transport.shared_buffers import SharedBuffers

NUM_UNITS = 8
NUM_BYTES = NUM_UNITS * UNIT_BYTES


@dataclass
class Gateway:
    """What the other end has, and what it lent."""

    arena: mmap.mmap
    ledger: mmap.mmap
    lent: list[SharedBuffers]


@pytest.fixture
def gateway() -> Gateway:
    """An arena and its ledger, mapped as a replica maps them."""
    arena_descriptor, arena = sealed_memory("smelt-test", NUM_BYTES, is_ours_to_write=True)
    ledger_descriptor, ledger = sealed_memory("smelt-test", NUM_UNITS, is_ours_to_write=False)
    their_arena = peers_memory(arena_descriptor, is_writable=False)
    their_ledger = peers_memory(ledger_descriptor, is_writable=True)
    os.close(arena_descriptor)
    os.close(ledger_descriptor)
    return Gateway(arena, ledger, [SharedBuffers(their_arena, their_ledger)])


def test_a_view_is_the_request_and_cannot_be_written(gateway: Gateway) -> None:
    begin = 3 * UNIT_BYTES + 17
    gateway.arena[begin : begin + 1000] = bytes(range(250)) * 4
    view = gateway.lent[0].view(begin, 1000)
    assert (bytes(view), view.readonly) == (bytes(range(250)) * 4, True)
    array = np.frombuffer(view, np.uint8)
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    gateway.arena[begin] = 77
    assert array[0] == 77


def test_the_end_of_the_last_part_clears_the_byte_of_the_slots_first_unit(gateway: Gateway) -> None:
    gateway.ledger[:] = b"\1" * NUM_UNITS
    view = gateway.lent[0].view(2 * UNIT_BYTES + 63, 3 * UNIT_BYTES)
    parts = [view[5:], np.frombuffer(view, np.float32, 4, 1), view.obj]
    del view
    while parts:
        assert gateway.ledger[:] == b"\1" * NUM_UNITS
        parts.pop()
    assert gateway.ledger[:] == b"\1\1\0\1\1\1\1\1"


def test_a_view_of_a_view_ends_without_a_word(gateway: Gateway) -> None:
    gateway.ledger[0] = 1
    view = gateway.lent[0].view(0, 100)
    for _ in range(2):
        view.obj[1:]  # type: ignore[index]
        assert gateway.ledger[0] == 1
    del view
    assert gateway.ledger[0] == 0


def test_a_view_may_end_in_any_thread(gateway: Gateway) -> None:
    gateway.ledger[1] = 1
    views = [gateway.lent[0].view(UNIT_BYTES, 100)]
    gateway.lent.clear()
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join(10)
    assert gateway.ledger[1] == LOST


def test_the_memory_stays_as_long_as_anything_looks(gateway: Gateway) -> None:
    mapped = weakref.ref(gateway.lent[0])
    gateway.ledger[0] = gateway.ledger[2] = 1
    slots = gateway.lent.pop()
    views = [slots.view(0, 10), slots.view(2 * UNIT_BYTES, 10)[3:5]]
    del slots
    while views:
        assert mapped() is not None
        views.pop()
    assert mapped() is None
    # Of places that were sent and never read too.
    assert gateway.ledger[:] == bytes([LOST]) * NUM_UNITS


@pytest.mark.parametrize(("begin", "size"), [(0, NUM_BYTES), (NUM_BYTES - 1, 1), (1, 1)])
def test_the_last_byte_can_be_read(gateway: Gateway, begin: int, size: int) -> None:
    gateway.arena[begin + size - 1] = 9
    assert gateway.lent[0].view(begin, size)[-1] == 9


@pytest.mark.parametrize(
    ("begin", "size"),
    [
        (0, 0),
        (0, NUM_BYTES + 1),
        (1, NUM_BYTES),
        (NUM_BYTES, 1),
        (NUM_BYTES + 1, 1),
        (2**64 - 1, 1),
        (2**64 - 1, 2**64 - 1),
        (0, 2**64 - 1),
    ],
)
def test_no_slot_can_be_elsewhere(gateway: Gateway, begin: int, size: int) -> None:
    gateway.ledger[:] = b"\1" * NUM_UNITS
    with pytest.raises(InvalidRequestError, match=f"is at {begin} and has {size} bytes"):
        gateway.lent[0].view(begin, size)
    assert gateway.ledger[:] == b"\1" * NUM_UNITS
