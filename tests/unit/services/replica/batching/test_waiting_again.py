"""What goes first when calls of failed batches wait again, and what room they take."""

import asyncio

import pytest

from services.contracts.errors import OverloadedError
from services.contracts.model.batching import Batching
from services.replica.batching.queue import Dropped, QueuedRequest, RequestQueue
from tests.unit.services.replica.toy_batcher import Clock, outputs_of, text_call

TWO = Batching(priority_levels=2, default_priority=2, max_queue=4, max_queue_bytes=800)
THREE = Batching(priority_levels=3, default_priority=2)


def waiting_of(level: int, deadline_s: float | None = None) -> QueuedRequest:
    answer = asyncio.get_running_loop().create_future()
    return QueuedRequest(
        text_call(), outputs_of, lambda _: None, answer, 100.0, level, deadline_s, num_bytes=100
    )


def added(line: RequestQueue, *levels: int) -> list[QueuedRequest]:
    found = [waiting_of(level) for level in levels]
    for waiting in found:
        line.add(waiting, None)
    return found


def taken(line: RequestQueue) -> list[QueuedRequest]:
    """As a batch former takes: a part that waits again, else all that a new batch may."""
    batch = line.take_again() or list(line)
    for waiting in batch:
        line.remove(waiting)
    return batch


async def test_whoever_comes_waits_for_those_of_its_level_that_wait_again() -> None:
    line = RequestQueue(THREE, Clock())
    again = [waiting_of(2) for _ in range(3)]
    line.put_back(again, 2)
    new, low = added(line, 2, 3)
    assert [taken(line) for _ in range(3)] == [again[:2], again[2:], [new, low]]
    assert len(line) == 0


async def test_a_failed_batch_of_several_levels_runs_again_level_by_level() -> None:
    line = RequestQueue(THREE, Clock())
    low, high, middle = (waiting_of(level) for level in (3, 1, 2))
    line.put_back([low, high, middle], 3)
    new = added(line, 2)
    assert [taken(line) for _ in range(4)] == [[high], [middle], new, [low]]


async def test_urgent_ones_that_fail_again_and_again_hold_up_nobody_for_good() -> None:
    line = RequestQueue(TWO, Clock())
    low = [waiting_of(2) for _ in range(3)]
    line.put_back(low, 1)
    answered: list[QueuedRequest] = []
    for _ in range(3):
        urgent = added(line, 1, 1)
        assert taken(line) == urgent
        line.put_back(urgent, 1)
        assert [taken(line), taken(line)] == [[urgent[0]], [urgent[1]]]
        added(line, 1)
        answered += taken(line)
        for waiting in list(line):
            line.remove(waiting)
    assert answered == low


async def test_who_left_has_stood_back_for_nobody_else() -> None:
    line = RequestQueue(TWO, Clock())
    (low,) = gone = [waiting_of(2)]
    line.put_back(gone, 1)
    urgent = added(line, 1)
    assert taken(line) == urgent
    line.remove(low)
    line.put_back([waiting_of(2)], 1)
    urgent = added(line, 1)
    assert taken(line) == urgent


async def test_what_waits_again_takes_room_and_gives_it_back() -> None:
    line = RequestQueue(TWO, Clock())
    again = [waiting_of(2) for _ in range(3)]
    line.put_back(again, 2)
    assert (len(line), line.used) == (3, 0.75)
    added(line, 2)
    with pytest.raises(OverloadedError, match="4 requests wait at priority level 2 .*at most 4"):
        line.check_room(2)
    line.check_room(1)
    assert line.remove(again[0])
    line.check_room(2)
    while line:
        taken(line)
    assert line.used == 0


async def test_what_waits_again_takes_room_in_bytes_too() -> None:
    line = RequestQueue(Batching(max_queue=64, max_queue_bytes=300), Clock())
    again = [waiting_of(0) for _ in range(3)]
    line.put_back(again, 3)
    with pytest.raises(OverloadedError, match="requests of 300 bytes wait in this replica"):
        line.check_room(0)
    line.remove(again[1])
    line.check_room(0)
    assert taken(line) == [again[0], again[2]]
    assert line.used == 0


async def test_who_is_late_as_its_part_is_due_is_told_that_it_ran() -> None:
    clock = Clock()
    line = RequestQueue(TWO, clock)
    late, stays = waiting_of(2, 104.0), waiting_of(2)
    line.put_back([late, stays], 2)
    clock.now_s = 105.0
    assert taken(line) == [stays]
    assert "it ran in a batch that failed" in str(late.answer.exception())
    assert len(line) == 0


async def test_the_next_deadline_is_that_of_whoever_waits_at_all() -> None:
    clock, dropped = Clock(), list[Dropped]()
    line = RequestQueue(TWO, clock, on_dropped=dropped.append)
    line.add(waiting_of(1, 109.0), None)
    late = waiting_of(2, 104.0)
    line.put_back([late, waiting_of(2, 106.0)], 1)
    assert line.drop_unwanted() == 104.0
    clock.now_s = 105.0
    assert line.drop_unwanted() == 106.0
    assert dropped == [Dropped.EXPIRED]
    assert "it ran in a batch that failed" in str(late.answer.exception())


async def test_a_place_that_is_freed_at_one_level_lets_a_call_of_unknown_level_in() -> None:
    clock = Clock()
    line = RequestQueue(TWO, clock)
    high = added(line, 1, 1, 1, 1)
    added(line, 2, 2, 2, 2)
    with pytest.raises(OverloadedError, match="every priority level of this replica's queue"):
        line.check_any_room()
    high[2].answer.cancel()
    clock.now_s += 1.0
    line.check_any_room()
    line.check_room(1)
