"""A batcher whose engine fails, hangs, is swapped or goes; callers are always answered."""

import asyncio
from functools import partial

import pytest

from services.contracts.errors import (
    EngineError,
    NotReadyError,
)
from services.replica.batching.batch_report import BatchReport
from services.replica.batching.queue import Dropped
from services.replica.engine.loaded_engine import STALL_S
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    Bench,
    ToyEngine,
    bench,
    executor_of,
    hold_engine,
    outputs_of,
    queue,
    submit,
    text_call,
)

BAD_ID = 999


async def test_whoever_is_cancelled_is_told_of_once_waiting_or_running() -> None:
    async with bench(text_model(max_batch=1)) as b:
        told: list[int] = []
        b.engine.may_run.clear()
        futures = [
            b.batcher.submit(text_call(), outputs_of, on_failure=partial(_note, told, number))
            for number in range(3)
        ]
        assert await asyncio.to_thread(b.engine.is_running.wait, 30)
        for future in futures[:2]:
            future.cancel()
        b.engine.may_run.set()
        await futures[2]
        assert told == [0, 1]
        assert b.dropped == [Dropped.CANCELLED, Dropped.DISCARDED]


async def test_whoever_fails_is_told_of_once_and_nobody_else() -> None:
    async with bench(text_model(max_batch=1)) as b:
        told: list[int] = []
        b.engine.error_by_run[1] = EngineError("out of memory")
        futures = [
            b.batcher.submit(text_call(), outputs_of, on_failure=partial(_note, told, number))
            for number in range(3)
        ]
        futures.append(b.batcher.submit(text_call(), _refuse, on_failure=partial(_note, told, 3)))
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [dict, EngineError, dict, ValueError]
        assert told == [1, 3]


def _note(told: list[int], number: int, _: Exception | None) -> None:
    told.append(number)


def _refuse(*_: object) -> None:
    raise ValueError("no answer can be made of this")


async def test_draining_answers_what_was_accepted_and_refuses_more() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call()])
        drain = asyncio.create_task(b.batcher.drain())
        await asyncio.sleep(0)
        with pytest.raises(NotReadyError, match="draining"):
            await submit(b.batcher, text_call())
        assert not drain.done()
        b.engine.may_run.set()
        await drain
        assert all(task.done() for task in (held, *waiting))


async def test_draining_an_idle_or_emptied_batcher_ends() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        (gone,) = await queue(b, [text_call()])
        b.engine.may_run.set()
        gone.cancel()
        await held
        await b.batcher.drain()
        assert b.batcher.num_unanswered == 0
        assert gone.cancelled()


async def test_closing_answers_those_who_still_wait() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        (waiting,) = await queue(b, [text_call()])
        await b.batcher.close()
        for task in (held, waiting):
            with pytest.raises(NotReadyError):
                await task
        assert not b.batcher.is_running


async def test_a_swap_takes_effect_between_two_batches() -> None:
    larger = text_model(max_batch=2).buckets
    async with bench(text_model(max_batch=1)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(), text_call()])
        new = ToyEngine()

        async def swap() -> None:
            async with b.batcher.between_batches:
                old = b.worker.replace(executor_of(new, larger))
            await old.close()

        swapping = asyncio.create_task(swap())
        await asyncio.sleep(0)
        assert not swapping.done()
        b.engine.may_run.set()
        await asyncio.gather(held, swapping, *waiting)
        assert (len(b.engine.ran), b.engine.num_closed) == (1, 1)
        # Its buckets are the larger ones, so both ran as one.
        assert new.ran == [(2, 2)]


async def test_a_hanging_engine_is_found() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        b.clock.now_s += STALL_S - 1
        assert not b.worker.is_stalled
        b.clock.now_s += 2
        assert b.worker.is_stalled
        b.engine.may_run.set()
        await held
        assert not b.worker.is_stalled


async def fail_until_suspect(b: Bench) -> None:
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert not b.worker.is_suspect
        b.engine.error_by_run[len(b.engine.ran)] = EngineError("broken")
        with pytest.raises(EngineError):
            await submit(b.batcher, text_call())
    assert b.worker.is_suspect


async def test_a_success_clears_suspicion() -> None:
    async with bench(text_model()) as b:
        await fail_until_suspect(b)
        await submit(b.batcher, text_call())
        assert not b.worker.is_suspect


async def test_a_suspect_engine_proves_itself_on_good_inputs() -> None:
    async with bench(text_model()) as b:
        await fail_until_suspect(b)
        b.engine.error_by_run[len(b.engine.ran)] = RuntimeError("still broken")
        with pytest.raises(EngineError, match="known to be good: still broken"):
            await b.worker.prove([text_call().inputs])
        assert b.worker.is_suspect
        await b.worker.prove([text_call().inputs])
        assert not b.worker.is_suspect


async def test_a_failing_observer_does_not_stop_the_batcher(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(report: BatchReport) -> None:
        raise RuntimeError("no metrics")

    async with bench(text_model(), on_batch=fail) as b:
        await submit(b.batcher, text_call())
        await submit(b.batcher, text_call())
        assert "a batch could not be recorded" in caplog.text
