"""Engines that must prove themselves, and are replaced while something is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from services.contracts.errors import EngineError
from services.contracts.kserve.tensors import Array
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from tests.unit.services.replica.engine_pair import (
    Pair,
    hold,
    limited,
    noting,
    open_pair,
    samples,
)
from tests.unit.services.replica.toy_batcher import ToyEngine, assert_own, submit, text_call


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_pair() as opened:
        yield opened


# ---------------------------------------------------------------- asked and replaced meanwhile


def fail_always(engine: ToyEngine) -> None:
    engine.error_by_run = {number: RuntimeError("broken") for number in range(100)}


async def proof_that_asks_before(pair: Pair) -> asyncio.Task[None]:
    """The engine in use fails a proof; the one before is asked too, and has not answered."""
    fail_always(pair.engine)
    pair.keep_before()
    pair.before.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove([text_call().inputs]))
    assert await asyncio.to_thread(pair.before.is_running.wait, 30)
    return proof


async def ask_and_replace(pair: Pair, replace: Callable[[], object]) -> None:
    """Prove the engine in use, and replace it before it answers."""
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove([text_call().inputs]))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    replace()
    pair.engine.may_run.set()
    await proof


async def test_a_proof_that_fails_says_nothing_of_the_engine_that_came_meanwhile(
    pair: Pair,
) -> None:
    pair.keep_before()
    fail_always(pair.engine)
    new = ToyEngine()
    await ask_and_replace(pair, lambda: pair.standby.close_soon(pair.worker.replace(limited(new))))
    assert pair.worker.executor.loaded.engine is new
    assert pair.returns == []


async def test_a_proof_that_passes_says_nothing_of_the_engine_that_came_meanwhile(
    pair: Pair,
) -> None:
    new = ToyEngine()
    fail_always(new)

    async def fail_in_a_row() -> None:
        for _ in range(MAX_FAILURES_IN_A_ROW):
            with pytest.raises(EngineError):
                await submit(pair.batcher, text_call())

    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove([text_call().inputs]))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    pair.standby.close_soon(pair.worker.replace(limited(new)))
    await fail_in_a_row()
    pair.engine.may_run.set()
    await proof
    assert pair.worker.is_suspect


async def test_another_engine_before_than_the_one_that_was_asked_is_not_returned_to(
    pair: Pair,
) -> None:
    proof = await proof_that_asks_before(pair)
    asked, pair.before = pair.before, ToyEngine()
    pair.keep_before()
    asked.may_run.set()
    with pytest.raises(EngineError, match="known to be good"):
        await proof
    assert pair.returns == []


async def test_a_swap_while_the_engine_before_is_asked_leaves_nobody_to_blame(pair: Pair) -> None:
    """The health check would blame whatever engine serves by then, and that is the new one."""
    proof = await proof_that_asks_before(pair)
    fail_always(pair.before)
    new = ToyEngine()
    pair.standby.close_soon(pair.worker.replace(limited(new)))
    pair.before.may_run.set()
    await proof
    assert (pair.worker.executor.loaded.engine, pair.returns) == (new, [])


async def test_an_engine_that_was_replaced_is_not_counted_against_the_next(pair: Pair) -> None:
    fail_always(pair.engine)
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        with pytest.raises(EngineError):
            await submit(pair.batcher, text_call())
    held = await hold(pair, pair.engine)
    new = ToyEngine()
    fail_always(new)
    pair.standby.close_soon(pair.worker.replace(limited(new)))
    pair.engine.may_run.set()
    with pytest.raises(EngineError):  # of the new one, which ran it again
        await held
    for _ in range(MAX_FAILURES_IN_A_ROW - 2):
        with pytest.raises(EngineError):
            await submit(pair.batcher, text_call())
    assert not pair.worker.is_suspect


async def test_a_batch_that_fails_after_the_engine_before_took_over_is_run_there(
    pair: Pair,
) -> None:
    proof = await proof_that_asks_before(pair)
    held = await hold(pair, pair.engine)
    pair.before.may_run.set()
    await proof
    assert pair.worker.executor.loaded.engine is pair.before
    pair.engine.may_run.set()
    assert_own(text_call(), await held)


# ---------------------------------------------------------------- who is at fault


async def test_requests_that_only_the_engine_before_answers_depose_nobody_without_a_proof(
    pair: Pair,
) -> None:
    pair.keep_before()
    pair.engine.error_by_id[1] = RuntimeError("no such row")
    for _ in range(2 * MAX_FAILURES_IN_A_ROW):
        assert_own(text_call(), await submit(pair.batcher, text_call()))
    assert pair.worker.is_suspect
    await pair.worker.prove([text_call(first=10).inputs])
    assert not pair.worker.is_suspect
    assert (pair.worker.executor.loaded.engine, pair.returns) == (pair.engine, [])


async def test_a_suspect_engine_that_fails_its_proof_is_left(pair: Pair) -> None:
    pair.keep_before()
    fail_always(pair.engine)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert_own(text_call(), await submit(pair.batcher, text_call()))
    await pair.worker.prove([text_call(first=10).inputs])
    assert pair.worker.executor.loaded.engine is pair.before
    assert pair.returns == ["engine fails on inputs that are known to be good: broken"]


# ---------------------------------------------------------------- at which sizes it fails


def fail_on_long(engine: ToyEngine, words: str) -> None:
    """Fail on all but the smallest sizes, as an engine does of which one kernel is bad."""
    plain_run = engine.run

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = plain_run(inputs)
        if inputs["ids"].shape[1] > 1:
            raise RuntimeError(words)
        return outputs

    engine.run = run  # type: ignore[method-assign]


async def test_an_engine_that_fails_on_all_but_its_smallest_sizes_is_left(pair: Pair) -> None:
    pair.keep_before()
    fail_on_long(pair.engine, "bad kernel")
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert_own(text_call(), await submit(pair.batcher, text_call()))
    assert pair.worker.is_suspect
    pair.before.ran.clear()
    not_asked = samples(1, 4, 16)
    await pair.worker.prove(not_asked)
    assert pair.worker.executor.loaded.engine is pair.before
    assert pair.returns == ["engine fails on inputs that are known to be good: bad kernel"]
    assert pair.before.ran == [(1, 4)]
    assert [inputs["ids"].shape for inputs in not_asked] == [(1, 16)]
    assert not pair.worker.is_suspect


async def test_an_engine_that_fails_where_the_one_before_does_too_is_for_the_health_check(
    pair: Pair,
) -> None:
    pair.keep_before()
    fail_on_long(pair.engine, "bad kernel")
    fail_on_long(pair.before, "no memory")
    for _ in range(MAX_FAILURES_IN_A_ROW):
        with pytest.raises(EngineError):
            await submit(pair.batcher, text_call())
    with pytest.raises(EngineError, match="known to be good: bad kernel"):
        await pair.worker.prove(samples(1, 16))
    assert pair.worker.is_suspect
    assert (pair.worker.executor.loaded.engine, pair.returns) == (pair.engine, [])


async def test_an_engine_that_runs_all_sizes_is_suspect_no_more(pair: Pair) -> None:
    pair.keep_before()
    pair.engine.error_by_id[1] = RuntimeError("no such row")
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert_own(text_call(), await submit(pair.batcher, text_call()))
    pair.engine.error_by_id.clear()
    pair.engine.ran.clear()
    await pair.worker.prove(samples(1, 4, 16))
    assert pair.engine.ran == [(1, 1), (1, 4), (1, 16)]
    assert not pair.worker.is_suspect


async def test_batches_run_between_the_runs_of_a_proof(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(samples(1, 16)))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    thread, is_in_line = pair.worker.executor.thread, asyncio.Event()
    monkeypatch.setattr(thread, "submit", noting(thread.submit, is_in_line))
    batch = asyncio.create_task(submit(pair.batcher, text_call(length=2)))
    await is_in_line.wait()
    pair.engine.may_run.set()
    assert_own(text_call(), await batch)
    await proof
    assert pair.engine.ran == [(1, 1), (1, 2), (1, 16)]


async def test_an_engine_that_was_replaced_is_asked_no_more(pair: Pair) -> None:
    new = ToyEngine()
    rest = samples(1, 4, 16)
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(rest))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    pair.standby.close_soon(pair.worker.replace(limited(new)))
    pair.engine.may_run.set()
    await proof
    assert (pair.engine.ran, new.ran) == ([(1, 1)], [])
    assert len(list(rest)) == 2
