"""The engine worker when engines hang, and how long that takes to be seen."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.replica.engine.loaded_engine import STALL_S, stall_limit_s
from tests.unit.services.replica.engine_pair import LIMIT_S, Pair, hold, open_pair, samples
from tests.unit.services.replica.toy_batcher import assert_own, submit, text_call


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_pair() as opened:
        yield opened


# ---------------------------------------------------------------- engines that hang


async def test_the_engine_before_takes_over_from_one_that_hangs(pair: Pair) -> None:
    pair.keep_before()
    held = await hold(pair, pair.engine)
    pair.clock.now_s += LIMIT_S - 1
    assert not pair.worker.is_stalled
    pair.clock.now_s += 2
    assert pair.worker.is_stalled
    assert await pair.worker.leave_hung()
    assert_own(text_call(), await held)
    assert pair.returns == [f"engine has not returned for {LIMIT_S:.0f} s"]
    assert pair.worker.executor.loaded.engine is pair.before
    # What comes back after all counts for nothing and is closed.
    pair.engine.may_run.set()
    await pair.standby.drop()
    assert pair.engine.num_closed == 1
    assert_own(text_call(), await submit(pair.batcher, text_call()))
    assert not pair.worker.is_stalled


async def test_without_an_engine_before_a_hang_is_for_the_health_check(pair: Pair) -> None:
    held = await hold(pair, pair.engine)
    pair.clock.now_s += LIMIT_S + 1
    assert not await pair.worker.leave_hung()
    assert pair.worker.is_stalled
    pair.engine.may_run.set()
    assert_own(text_call(), await held)


async def test_an_engine_before_that_hangs_too_is_not_left_for_another(pair: Pair) -> None:
    pair.keep_before()
    held = await hold(pair, pair.engine)
    pair.before.may_run.clear()
    pair.clock.now_s += LIMIT_S + 1
    assert await pair.worker.leave_hung()
    assert await asyncio.to_thread(pair.before.is_running.wait, 30)
    assert not pair.worker.is_stalled
    pair.clock.now_s += LIMIT_S + 1
    assert pair.worker.is_stalled
    assert not await pair.worker.leave_hung()
    pair.before.may_run.set()
    assert_own(text_call(), await held)


async def test_an_engine_before_that_hangs_over_a_failed_batch_is_for_the_health_check(
    pair: Pair,
) -> None:
    pair.keep_before()
    pair.engine.error_by_run[0] = RuntimeError("broken")
    pair.before.may_run.clear()
    call = asyncio.create_task(submit(pair.batcher, text_call()))
    assert await asyncio.to_thread(pair.before.is_running.wait, 30)
    pair.clock.now_s += LIMIT_S + 1
    assert not await pair.worker.leave_hung()
    pair.before.may_run.set()
    assert_own(text_call(), await call)
    assert pair.returns == []


async def test_a_hang_on_an_engine_that_a_proof_has_replaced_is_answered_by_the_one_in_use(
    pair: Pair,
) -> None:
    pair.keep_before()
    pair.engine.error_by_run[0] = RuntimeError("broken")
    pair.before.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(samples(2)))
    assert await asyncio.to_thread(pair.before.is_running.wait, 30)
    held = await hold(pair, pair.engine)
    pair.before.may_run.set()
    await proof
    assert pair.worker.executor.loaded.engine is pair.before
    pair.clock.now_s += LIMIT_S + 1
    assert await pair.worker.leave_hung()
    assert_own(text_call(), await held)


async def test_a_process_that_stood_still_does_not_leave_its_engine() -> None:
    async with open_pair(second_look_s=30.0) as pair:
        pair.keep_before()
        held = await hold(pair, pair.engine)
        pair.clock.now_s += LIMIT_S + 1
        leaving = asyncio.create_task(pair.worker.leave_hung())
        await asyncio.sleep(0)
        pair.engine.may_run.set()
        assert await leaving
        assert_own(text_call(), await held)
        assert (pair.worker.executor.loaded.engine, pair.returns) == (pair.engine, [])


async def test_closing_while_an_engine_is_being_left_ends_the_batcher(pair: Pair) -> None:
    pair.keep_before()
    held = await hold(pair, pair.engine)
    pair.clock.now_s += LIMIT_S + 1
    assert await pair.worker.leave_hung()
    await pair.batcher.close()
    assert not pair.batcher.is_running
    with pytest.raises(Exception, match="stopped"):
        await held


async def test_a_batch_that_waits_behind_a_hung_proof_stalls_too(pair: Pair) -> None:
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove([text_call().inputs]))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    waiting = asyncio.create_task(submit(pair.batcher, text_call()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pair.clock.now_s += LIMIT_S + 1
    assert pair.worker.is_stalled
    pair.engine.may_run.set()
    await asyncio.gather(proof, waiting)


# ---------------------------------------------------------------- how long is too long


@pytest.mark.parametrize(
    ("longest_run_s", "is_cpu", "limit_s"),
    [
        (0.0001, True, 10),
        (0.0001, False, 30),
        (0.2, True, 20),
        (0.5, False, 50),
        (2.0, True, STALL_S),
        (12.0, True, 120),
        (None, True, STALL_S),
    ],
)
def test_a_run_may_take_a_hundred_times_what_was_measured(
    longest_run_s: float | None, is_cpu: bool, limit_s: float
) -> None:
    assert stall_limit_s(longest_run_s, is_cpu=is_cpu) == pytest.approx(limit_s)
