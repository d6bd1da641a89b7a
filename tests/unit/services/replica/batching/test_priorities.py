"""Levels of priority, their limits and timeouts, in a batcher whose engine is held."""

import asyncio
from collections import Counter

import pytest

from services.contracts.errors import DeadlineExceededError, OverloadedError
from services.contracts.model.batching import Batching, QueuePolicy
from services.contracts.model.manifest import ModelVersion
from services.replica.batching.queue import Dropped, QueuedRequest, RequestQueue
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    Bench,
    assert_own,
    bench,
    hold_engine,
    outputs_of,
    queue,
    submit,
    text_call,
)

LEVELS = Batching(
    priority_levels=3,
    default_priority=2,
    queue_policies={
        1: QueuePolicy(max_queue=2),
        3: QueuePolicy(default_timeout_ms=5_000, max_timeout_ms=60_000),
    },
)


def _model(batching: Batching, max_batch: int = 8) -> ModelVersion:
    model = text_model(max_batch=max_batch)
    recipe = model.recipe.model_copy(update={"batching": batching})
    return model.model_copy(update={"recipe": recipe})


def _dropped(b: Bench) -> Counter[Dropped]:
    return Counter(b.dropped)


async def test_higher_levels_run_first_and_equals_in_order() -> None:
    async with bench(_model(LEVELS, max_batch=1)) as b:
        held = await hold_engine(b)
        priorities = (3, 0, 1, 3, 2, 1, 9)
        calls = [text_call(first=100 * n)._replace(priority=p) for n, p in enumerate(priorities)]
        waiting = await queue(b, calls)
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert b.engine.first_ids[1:] == [200, 500, 100, 400, 600, 0, 300]


async def test_lower_levels_fill_the_batch_of_a_higher_one() -> None:
    async with bench(_model(LEVELS, max_batch=3)) as b:
        held = await hold_engine(b)
        calls = [text_call(first=100 * n)._replace(priority=p) for n, p in enumerate((3, 3, 1, 3))]
        waiting = await queue(b, calls)
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert b.engine.ran[1:] == [(3, 2), (1, 2)]
        assert b.engine.first_ids[1:] == [200, 300]


async def test_the_default_policys_bound_counts_without_levels_too() -> None:
    batching = Batching(default_queue_policy=QueuePolicy(max_queue=2))
    async with bench(_model(batching)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(), text_call()])
        with pytest.raises(OverloadedError, match="2 requests wait in .* default_queue_policy"):
            b.batcher.submit(text_call(), outputs_of)
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)


async def test_a_full_level_refuses_while_others_take() -> None:
    async with bench(_model(LEVELS)) as b:
        held = await hold_engine(b)
        first = text_call()._replace(priority=1)
        waiting = await queue(b, [first, first])
        with pytest.raises(
            OverloadedError, match=r"2 requests wait at priority level 1 .*at most 2 may"
        ):
            await submit(b.batcher, first)
        waiting += await queue(b, [text_call()])
        assert _dropped(b) == {Dropped.REFUSED: 1}
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)


async def test_many_of_a_low_level_refuse_none_of_a_high_one() -> None:
    batching = Batching(max_queue=2, priority_levels=2, default_priority=2)
    async with bench(_model(batching)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(), text_call()])
        with pytest.raises(
            OverloadedError,
            match=r"2 requests wait at priority level 2 .*at most 2 may; .* max_queue in the rec",
        ):
            b.batcher.submit(text_call(), outputs_of)
        first = text_call()._replace(priority=1)
        waiting += await queue(b, [first, first])
        with pytest.raises(OverloadedError, match="every priority level of this replica"):
            b.batcher.admit()
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)


async def test_bytes_of_a_low_level_refuse_none_of_a_high_one() -> None:
    batching = Batching(max_queue_bytes=400, priority_levels=2, default_priority=2)
    async with bench(_model(batching)) as b:
        held = await hold_engine(b)
        low = [b.batcher.submit(text_call(), outputs_of, num_bytes=150) for _ in range(2)]
        with pytest.raises(
            OverloadedError, match=r"300 bytes wait at priority level 2 .*at most 200 may; .*_bytes"
        ):
            b.batcher.admit(2)
        # What one level has too much takes nothing of the other's part.
        b.batcher.admit()
        assert b.batcher.queue.used == 1.5
        high = b.batcher.submit(text_call()._replace(priority=1), outputs_of, num_bytes=199)
        b.batcher.admit(1)
        b.engine.may_run.set()
        await asyncio.gather(held, *low, high)
        assert b.batcher.queue.used == 0


@pytest.mark.parametrize(
    ("asked_s", "waited_s", "is_late"),
    [(None, 4, False), (None, 6, True), (3600.0, 59, False), (3600.0, 61, True)],
)
async def test_a_level_s_own_timeout_and_its_limit(
    asked_s: float | None, waited_s: float, is_late: bool
) -> None:
    async with bench(_model(LEVELS)) as b:
        held = await hold_engine(b)
        low = text_call()._replace(priority=3, timeout_s=asked_s)
        (tested, other) = await queue(b, [low, text_call()])
        b.clock.now_s += waited_s
        b.engine.may_run.set()
        await asyncio.gather(held, other)
        if is_late:
            with pytest.raises(DeadlineExceededError, match=rf"it waited {waited_s}000 ms"):
                await tested
        else:
            assert_own(low, await tested)
        assert _dropped(b) == ({Dropped.EXPIRED: 1} if is_late else {})


async def test_an_expired_request_is_told_while_the_engine_still_runs() -> None:
    async with bench(_model(Batching())) as b:
        held = await hold_engine(b)
        late = asyncio.create_task(submit(b.batcher, text_call()._replace(timeout_s=0.01)))
        await asyncio.sleep(0)
        b.clock.now_s += 1
        with pytest.raises(DeadlineExceededError):
            await late
        assert b.batcher.num_waiting == 0
        assert not held.done()
        b.engine.may_run.set()
        await held
        assert b.engine.ran == [(1, 2)]


async def test_waiting_for_companions_never_makes_a_request_expire() -> None:
    # A minute of lingering would leave nothing of the 20 ms.
    async with bench(_model(Batching(max_delay_ms=60_000))) as b:
        call = text_call()._replace(timeout_s=0.02)
        assert_own(call, await submit(b.batcher, call))


async def test_an_idle_engine_waits_for_a_bucket_and_not_for_the_largest() -> None:
    model = _model(Batching(max_delay_ms=60_000))
    large = model.recipe.buckets[0]
    rows = large.dims["batch"].model_copy(update={"max": 2, "opt": 2})
    small = large.model_copy(update={"dims": large.dims | {"batch": rows}})
    recipe = model.recipe.model_copy(update={"buckets": (large, small)})
    async with bench(model.model_copy(update={"recipe": recipe})) as b:
        await asyncio.gather(*(submit(b.batcher, text_call()) for _ in range(2)))
        assert b.engine.ran == [(2, 2)]


async def test_what_nobody_wants_any_more_is_counted() -> None:
    async with bench(_model(Batching())) as b:
        held = await hold_engine(b)
        (gone,) = await queue(b, [text_call()])
        gone.cancel()
        held.cancel()
        await asyncio.sleep(0)
        (other,) = await queue(b, [text_call()])
        b.engine.may_run.set()
        await other
        assert _dropped(b) == {Dropped.CANCELLED: 1, Dropped.DISCARDED: 1}


async def test_one_that_is_cancelled_as_a_batch_is_taken_is_counted_once() -> None:
    async with bench(_model(Batching(max_queue=1))) as b:
        held = await hold_engine(b)
        gone = b.batcher.submit(text_call(), outputs_of)
        gone.cancel()
        # Its callback has not run: room is made all the same.
        (other,) = await queue(b, [text_call()])
        b.engine.may_run.set()
        await asyncio.gather(held, other)
        assert _dropped(b) == {Dropped.CANCELLED: 1}


async def test_a_full_line_is_not_looked_through_for_each_that_it_refuses() -> None:
    now_s = [0.0]
    line = RequestQueue(Batching(max_queue=2), lambda: now_s[0])
    answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for answer in answers:
        line.add(QueuedRequest(text_call(), outputs_of, print, answer, arrived_s=0.0), None)
    with pytest.raises(OverloadedError):
        line.check_room(0)
    answers[0].cancel()
    with pytest.raises(OverloadedError):
        line.check_room(0)
    now_s[0] += 0.1
    line.check_room(0)
    assert len(line) == 1
