"""A batch that fails waits again and runs in halves, as any other that waits."""

import asyncio
from typing import Any

import pytest

from services.contracts.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    NotReadyError,
)
from services.contracts.model.batching import Batching
from services.replica.batching.batcher import Outputs
from services.replica.batching.queue import Dropped
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW, HangError
from services.replica.reporting.statistics import Statistics
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    Bench,
    assert_own,
    bench,
    changed,
    hold_engine,
    outputs_of,
    queue,
    submit,
    text_call,
)

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
        assert b.engine.ran[1:] == [(4, 2), (2, 2), (2, 2), (1, 2), (1, 2)]
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
        assert told == [((1,), (2.0,), number == 2) for number in range(3)]
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


async def hold_what_runs_again(b: Bench) -> None:
    """Let a batch fail; its first part is with the worker then, which the engine holds."""
    plain_run, is_in = b.worker.run, asyncio.Event()

    async def run(*args: Any, **options: Any) -> Any:
        b.engine.may_run.clear()
        is_in.set()
        return await plain_run(*args, **options)

    b.worker.run = run  # type: ignore[method-assign]
    b.engine.may_run.set()
    async with asyncio.timeout(30):
        await is_in.wait()


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


async def test_a_swap_happens_before_a_failed_batch_runs_again() -> None:
    async with bench(text_model()) as b:
        waiting = await hold_batch_that_fails(b)
        swap = asyncio.create_task(b.batcher.between_batches.acquire())
        b.engine.may_run.set()
        await swap
        assert b.engine.ran == [(3, 2)]
        assert (b.batcher.num_waiting, b.batcher.num_unanswered) == (3, 3)
        b.batcher.between_batches.release()
        await asyncio.gather(*waiting)
        assert b.engine.ran == [(3, 2), (2, 2), (1, 2)]


async def test_closing_answers_those_who_were_to_run_again() -> None:
    async with bench(text_model()) as b:
        waiting = await hold_batch_that_fails(b)
        await hold_what_runs_again(b)
        await b.batcher.close()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [NotReadyError] * 3
        assert b.batcher.num_unanswered == 0


async def test_what_hangs_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(text_model()) as b:
        num_asked = 0

        async def hang(*_: object, **__: object) -> None:
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


@pytest.mark.parametrize("place", [0, 5, 63])
async def test_one_bad_request_of_many_costs_few_runs(place: int) -> None:
    async with bench(text_model(max_batch=64)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(first=BAD_ID if n == place else 10) for n in range(64)])
        b.engine.error_by_id[BAD_ID] = RuntimeError("no such row")
        b.engine.may_run.set()
        await held
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [n for n, each in enumerate(results) if isinstance(each, Exception)] == [place]
        # The whole, and two halves of whatever the bad one is in: 64, 32, 16, 8, 4, 2.
        assert len(b.engine.ran) - 1 == 13
        # Between any two failures of it a half went well.
        assert not b.worker.is_suspect


async def test_who_is_late_hears_it_while_the_others_run_again() -> None:
    async with bench(text_model()) as b:
        waiting = await hold_batch_that_fails(b, deadline_s=100.05)
        await hold_what_runs_again(b)
        b.clock.now_s = 101.0
        with pytest.raises(DeadlineExceededError, match="ran in a batch that failed, and was to"):
            async with asyncio.timeout(30):
                await waiting[2]
        assert not waiting[0].done()
        b.engine.may_run.set()
        await asyncio.gather(*waiting[:2])
        assert b.dropped == [Dropped.EXPIRED]


async def test_an_urgent_newcomer_goes_before_what_runs_again() -> None:
    model = text_model(max_batch=4)
    batching = Batching(priority_levels=2, default_priority=2)
    recipe = model.recipe.model_copy(update={"batching": batching})
    async with bench(model.model_copy(update={"recipe": recipe})) as b:
        waiting = await hold_batch_that_fails(b)
        urgent = text_call(first=70)._replace(priority=1)
        newcomer = await queue(b, [urgent, text_call(first=80)])
        b.engine.may_run.set()
        await asyncio.gather(*waiting, *newcomer)
        # With it goes nobody who is to wait for the failed batch, and that is joined by nobody.
        assert b.engine.ran == [(3, 2), (1, 2), (2, 2), (1, 2), (1, 2)]
        assert [b.engine.first_ids[number] for number in (1, 4)] == [70, 80]


async def test_runs_of_a_brief_engine_again_let_the_loop_turn() -> None:
    async with bench(text_model(max_batch=8)) as b:
        b.worker.replace(changed(b.worker.executor, is_brief=True))
        b.engine.error_by_run = {number: RuntimeError("broken") for number in range(3)}
        futures = [b.batcher.submit(text_call(first=10 * n), outputs_of) for n in range(8)]
        loop, turns = asyncio.get_running_loop(), 0

        def cancel_last() -> None:
            nonlocal turns
            turns += 1
            if len(b.engine.ran) < 2:
                loop.call_soon(cancel_last)
            else:
                futures[-1].cancel()

        loop.call_soon(cancel_last)
        await asyncio.gather(*futures, return_exceptions=True)
        assert turns > 1
        assert futures[-1].cancelled()
        assert Dropped.CANCELLED in b.dropped


async def test_a_broken_engine_is_not_asked_for_each_half() -> None:
    async with bench(text_model(max_batch=64)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call() for _ in range(64)])
        b.engine.error_by_run = {number: RuntimeError("broken") for number in range(1, 200)}
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting, return_exceptions=True)
        cut = [rows for rows, _ in b.engine.ran[1 : 2 * MAX_FAILURES_IN_A_ROW] if rows > 1]
        assert cut[:MAX_FAILURES_IN_A_ROW] == [64, 32, 32, 16, 16]
        # Suspect from then on: of what was cut before each part runs once more, then each call.
        assert [rows for rows, _ in b.engine.ran[6:]] == [16] * 2 + [8] * 2 + [1] * 64


@pytest.mark.parametrize("num_calls", [1, 2])
async def test_an_answer_that_nobody_wants_is_counted_however_it_fails(num_calls: int) -> None:
    async with bench(text_model()) as b:
        b.engine.may_run.clear()
        b.engine.error_by_run = {0: RuntimeError("broken")}
        waiting = await queue(b, [text_call() for _ in range(num_calls)])
        assert await asyncio.to_thread(b.engine.is_running.wait, 30)
        for task in waiting:
            task.cancel()
        b.engine.may_run.set()
        await b.batcher.drain()
        assert b.dropped == [Dropped.DISCARDED] * num_calls


async def test_a_deadline_is_set_again_for_what_waits_again() -> None:
    """The clock has gone on to another deadline meanwhile, and looks no more for this one."""
    async with bench(text_model()) as b:
        waiting = await hold_batch_that_fails(b, deadline_s=100.2)
        other = asyncio.create_task(submit(b.batcher, text_call(first=70), deadline_s=100.01))
        b.clock.now_s = 100.02
        with pytest.raises(DeadlineExceededError):
            await asyncio.wait_for(other, 30)
        await hold_what_runs_again(b)
        b.clock.now_s = 100.3
        with pytest.raises(DeadlineExceededError, match="ran in a batch that failed"):
            await asyncio.wait_for(waiting[2], 30)
        b.engine.may_run.set()
        await asyncio.gather(*waiting[:2])
