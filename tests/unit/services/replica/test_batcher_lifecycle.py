"""A batcher whose engine fails, hangs, is swapped or goes; callers are always answered."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from services.contracts.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    NotReadyError,
)
from services.replica.batcher import BatchReport, Outputs
from services.replica.engine_seat import EngineSeat, EngineThread
from services.replica.engine_worker import MAX_FAILURES_IN_A_ROW, HangError
from services.replica.loaded_engine import STALL_S
from services.replica.statistics import Statistics
from services.replica.waiting import Dropped

from .batching import (
    Bench,
    ToyEngine,
    assert_own,
    bench,
    hold_engine,
    queue,
    submit,
    text_call,
)
from .models import text_model

BAD_ID = 999


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (EngineError("out of memory"), EngineError),
        (RuntimeError("library says no"), EngineError),
        (InvalidRequestError("outside every bucket"), InvalidRequestError),
    ],
)
async def test_a_request_that_the_engine_fails_on_fails_alone(
    raised: Exception, seen: type[Exception]
) -> None:
    async with bench(text_model(max_batch=4)) as b:
        held = await hold_engine(b)
        calls = [text_call(first=first) for first in (10, 20, BAD_ID, 40)]
        waiting = await queue(b, calls)
        b.engine.error_by_id[BAD_ID] = raised
        b.engine.may_run.set()
        await held
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [dict, dict, seen, dict]
        assert str(raised) in str(results[2])
        for number in (0, 1, 3):
            assert_own(calls[number], results[number])
        assert b.engine.ran[1:] == [(4, 2), *[(1, 2)] * 4]
        assert not b.worker.is_suspect


async def test_a_batch_that_runs_again_is_counted_once() -> None:
    async with bench(text_model(max_batch=4)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(first=first) for first in (10, BAD_ID, 30)])
        b.engine.error_by_id[BAD_ID] = RuntimeError("no such row")
        b.clock.now_s += 2
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting, return_exceptions=True)
        told = [(report.rows, report.queued_s, report.times is None) for report in b.reports[1:]]
        assert told == [((1,), (2.0,), number == 1) for number in range(3)]
        statistics = Statistics("m", "3")
        for report in b.reports:
            statistics.record_batch(report)
        message = statistics.message()
        total = message.inference_stats
        assert (message.inference_count, message.execution_count) == (3, 3)
        counts = (total.compute_input, total.compute_infer, total.compute_output, total.queue)
        assert [each.count for each in counts] == [3] * 4


async def test_what_only_a_large_batch_fails_on_is_answered() -> None:
    async with bench(text_model(max_batch=4)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call() for _ in range(4)])
        b.engine.error_by_run[1] = EngineError("out of memory")
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert not b.worker.is_suspect


async def test_an_engine_that_fails_on_everything_is_suspect_after_one_batch() -> None:
    async with bench(text_model(max_batch=8)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call() for _ in range(MAX_FAILURES_IN_A_ROW)])
        b.engine.error_by_run = {number: RuntimeError("broken") for number in range(1, 20)}
        b.engine.may_run.set()
        await held
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {EngineError}
        assert b.worker.is_suspect


async def hold_batch_that_fails(b: Bench, **options: float) -> list[asyncio.Task[Outputs]]:
    """Three calls of one batch, which the engine holds and is to fail on; options of the last."""
    b.engine.may_run.clear()
    b.engine.error_by_run[0] = RuntimeError("broken")
    calls = [submit(b.batcher, text_call()), submit(b.batcher, text_call())]
    waiting = [
        asyncio.create_task(call) for call in (*calls, submit(b.batcher, text_call(), **options))
    ]
    assert await asyncio.to_thread(b.engine.is_running.wait, 30)
    return waiting


async def test_what_nobody_wants_any_more_does_not_run_again() -> None:
    async with bench(text_model()) as b:
        gone, stays, late = await hold_batch_that_fails(b, deadline_s=105.0)
        assert b.batcher.num_unanswered == 3
        gone.cancel()
        b.clock.now_s = 106.0
        b.engine.may_run.set()
        assert_own(text_call(), await stays)
        with pytest.raises(DeadlineExceededError):
            await late
        assert b.engine.ran == [(3, 2), (1, 2)]
        assert b.dropped == [Dropped.DISCARDED, Dropped.EXPIRED]
        await b.batcher.drain()


async def test_a_swap_waits_until_each_of_a_failed_batch_ran_again() -> None:
    async with bench(text_model()) as b:
        waiting = await hold_batch_that_fails(b)
        swap = asyncio.create_task(b.batcher.between_batches.acquire())
        b.engine.may_run.set()
        await swap
        assert len(b.engine.ran) == 4
        b.batcher.between_batches.release()
        await asyncio.gather(*waiting)


async def test_closing_answers_those_who_were_to_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench(text_model()) as b:
        waiting = await hold_batch_that_fails(b)
        plain_run, runs_alone = b.worker.run, asyncio.Event()

        async def hold_and_run(*args: Any) -> Any:
            b.engine.may_run.clear()
            runs_alone.set()
            return await plain_run(*args)

        monkeypatch.setattr(b.worker, "run", hold_and_run)
        b.engine.may_run.set()
        async with asyncio.timeout(30):
            await runs_alone.wait()
        await b.batcher.close()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [NotReadyError] * 3
        assert b.batcher.num_unanswered == 0


async def test_what_hangs_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(text_model()) as b:
        num_asked = 0

        async def hang(*_: object) -> None:
            nonlocal num_asked
            num_asked += 1
            raise HangError("engine has not returned")

        held = await hold_engine(b)
        waiting = await queue(b, [text_call() for _ in range(3)])
        monkeypatch.setattr(b.worker, "run", hang)
        b.engine.may_run.set()
        await held
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [HangError] * 3
        assert num_asked == 1


async def test_whoever_is_cancelled_is_told_of_once_waiting_or_running() -> None:
    async with bench(text_model(max_batch=1)) as b:
        told: list[int] = []
        b.engine.may_run.clear()
        futures = [
            b.batcher.submit(text_call(), dict, on_failure=partial(told.append, number))
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
            b.batcher.submit(text_call(), dict, on_failure=partial(told.append, number))
            for number in range(3)
        ]
        futures.append(b.batcher.submit(text_call(), _refuse, on_failure=partial(told.append, 3)))
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [dict, EngineError, dict, ValueError]
        assert told == [1, 3]


def _refuse(_: object) -> None:
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


async def test_closing_answers_those_who_still_wait() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        (waiting,) = await queue(b, [text_call()])
        await b.batcher.close()
        for task in (held, waiting):
            with pytest.raises(NotReadyError):
                await task
        assert not b.batcher.is_alive


async def test_a_swap_takes_effect_between_two_batches() -> None:
    async with bench(text_model(max_batch=1)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(), text_call()])
        new = ToyEngine()

        async def swap() -> None:
            async with b.batcher.between_batches:
                old = b.worker.replace(EngineSeat(engine=new, buckets=(), thread=EngineThread()))
            await old.close()

        swapping = asyncio.create_task(swap())
        await asyncio.sleep(0)
        assert not swapping.done()
        b.engine.may_run.set()
        await asyncio.gather(held, swapping, *waiting)
        assert (len(b.engine.ran), b.engine.num_closed) == (1, 1)
        # With no buckets the rows of a batch are bounded by a default, so both ran as one.
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
            await b.worker.prove(text_call().inputs)
        assert b.worker.is_suspect
        await b.worker.prove(text_call().inputs)
        assert not b.worker.is_suspect


async def test_a_failing_observer_does_not_stop_the_batcher(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with bench(text_model()) as b:

        def fail(report: BatchReport) -> None:
            raise RuntimeError("no metrics")

        observer: Callable[[BatchReport], None] = fail
        b.batcher._on_batch = observer
        await submit(b.batcher, text_call())
        await submit(b.batcher, text_call())
        assert "recording a batch failed" in caplog.text
