"""Batches form as they should, and everybody gets exactly their own rows."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import (
    DeadlineExceededError,
    OverloadedError,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, DimRange
from services.replica.batching.batch_policy import MAX_CANDIDATES
from services.replica.batching.queue import Dropped
from services.replica.request.infer_call import held_bytes
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


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 16), st.booleans()), min_size=1, max_size=120
    ),
    paddable=st.booleans(),
    max_delay_ms=st.sampled_from([0.0, 0.2]),
)
def test_every_request_gets_exactly_its_own_rows(
    shapes: list[tuple[int, int, bool]], paddable: bool, max_delay_ms: float
) -> None:
    async def run() -> None:
        model = text_model(max_delay_ms=max_delay_ms)
        if not paddable:
            bare = model.recipe.model_copy(update={"inputs": {}})
            model = model.model_copy(update={"recipe": bare})
        async with bench(model) as b:
            calls = [
                text_call(rows, length, first=97 * index, outputs=("pooled",) if short else None)
                for index, (rows, length, short) in enumerate(shapes)
            ]
            answers = await asyncio.gather(*(submit(b.batcher, call) for call in calls))
            for call, answer in zip(calls, answers, strict=True):
                assert_own(call, answer)
            assert all(rows <= 8 and length <= 16 for rows, length in b.engine.ran)
            assert sum(rows for rows, _ in b.engine.ran) == sum(rows for rows, _, _ in shapes)
            assert len(b.engine.ran) == len(b.reports)

    asyncio.run(run())


async def test_what_waits_runs_as_soon_as_the_engine_frees() -> None:
    async with bench(text_model(max_batch=4)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(first=10 * n) for n in range(6)])
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert b.engine.ran == [(1, 2), (4, 2), (2, 2)]


async def test_an_idle_engine_takes_a_lone_request_at_once() -> None:
    async with bench(text_model()) as b:
        assert_own(text_call(), await submit(b.batcher, text_call()))


async def test_an_idle_engine_lingers_only_until_the_batch_is_full() -> None:
    # One minute is longer than this test may take: only a full batch can end the wait.
    async with bench(text_model(max_batch=4, max_delay_ms=60_000)) as b:
        calls = [text_call(rows=2, first=10 * n) for n in range(2)]
        await asyncio.gather(*(submit(b.batcher, call) for call in calls))
        assert b.engine.ran == [(4, 2)]


async def test_lingering_ends_by_itself() -> None:
    async with bench(text_model(max_delay_ms=1)) as b:
        assert_own(text_call(), await submit(b.batcher, text_call()))


async def test_other_lengths_are_padded_when_the_recipe_says_how() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        calls = [text_call(rows=1, length=length) for length in (8, 9, 7)]
        waiting = await queue(b, calls)
        b.engine.may_run.set()
        await held
        for call, answer in zip(calls, await asyncio.gather(*waiting), strict=True):
            assert_own(call, answer)
        assert b.engine.ran[1:] == [(3, 9)]


async def test_a_batch_is_filled_from_beyond_those_that_are_cut() -> None:
    async with bench(text_model(max_batch=100)) as b:
        held = await hold_engine(b)
        lengths = (8, *[2] * MAX_CANDIDATES, 8, 7, 8, 9, 8)
        calls = [text_call(length=n, first=100 * i) for i, n in enumerate(lengths)]
        waiting = await queue(b, calls)
        b.engine.may_run.set()
        await held
        for call, answer in zip(calls, await asyncio.gather(*waiting), strict=True):
            assert_own(call, answer)
        assert b.engine.ran[1] == (4, 8)


@pytest.mark.parametrize("kept", [("ids",), ("mask",), ()])
async def test_other_lengths_run_apart_without_a_pad_for_all_or_a_mask(
    kept: tuple[str, ...],
) -> None:
    model = text_model()
    inputs = {name: model.recipe.inputs[name] for name in kept}
    model = model.model_copy(update={"recipe": model.recipe.model_copy(update={"inputs": inputs})})
    async with bench(model) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(length=n) for n in (3, 9, 3)])
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert b.engine.ran[1:] == [(2, 3), (1, 9)]


async def test_a_batch_stays_inside_a_bucket_of_the_engine() -> None:
    def bucket(batch: int, sequence: int) -> Bucket:
        return Bucket(
            dims={
                "batch": DimRange(min=1, opt=1, max=batch),
                "sequence": DimRange(min=1, opt=1, max=sequence),
            }
        )

    model = text_model()
    recipe = model.recipe.model_copy(update={"buckets": (bucket(8, 4), bucket(2, 16))})
    async with bench(model.model_copy(update={"recipe": recipe})) as b:
        held = await hold_engine(b)
        lengths = (3, 3, 16, 3, 16, 16)
        waiting = await queue(b, [text_call(length=n) for n in lengths])
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert b.engine.ran[1:] == [(3, 3), (2, 16), (1, 16)]


async def test_a_full_queue_refuses_and_recovers() -> None:
    async with bench(text_model(max_queue=2)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(), text_call()])
        with pytest.raises(OverloadedError, match="2 requests wait in this replica, at most 2"):
            await submit(b.batcher, text_call())
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        await submit(b.batcher, text_call())


def text_model_with(batching: Batching) -> ModelVersion:
    model = text_model()
    recipe = model.recipe.model_copy(update={"batching": batching})
    return model.model_copy(update={"recipe": recipe})


async def test_a_thousand_requests_wait_where_a_recipe_says_nothing() -> None:
    """As they do in Triton, whose clients end at the first refusal."""
    async with bench(text_model_with(Batching())) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(length=1 + n % 16) for n in range(1000)])
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert sum(rows for rows, _ in b.engine.ran[1:]) == 1000


async def test_of_a_long_queue_the_most_urgent_are_looked_at() -> None:
    async with bench(text_model_with(Batching(max_waste=0.0))) as b:
        held = await hold_engine(b)
        lengths = [3, *([16] * 600), 3]
        waiting = await queue(b, [text_call(length=length) for length in lengths])
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert b.engine.ran[1] == (1, 3)


@pytest.mark.parametrize(
    ("array", "num_bytes"),
    [
        (np.zeros((2, 8), np.int64), 1000),  # as in the message, which has a head besides
        (np.zeros((1000, 8), np.int64), 64_000),  # sent as varints, a byte each
        (np.array([b"red", b"blue"], object), 1000 + 2 * 64),
    ],
)
def test_a_request_counts_as_what_it_holds(array: np.ndarray, num_bytes: int) -> None:
    assert held_bytes({"x": array}, message_bytes=1000) == num_bytes


async def test_a_queue_is_full_by_bytes_too() -> None:
    async with bench(text_model_with(Batching(max_queue_bytes=100))) as b:
        held = await hold_engine(b)
        # One that is larger than all that may wait is taken while nothing waits.
        large = b.batcher.submit(text_call(), outputs_of, num_bytes=120)
        with pytest.raises(
            OverloadedError,
            match=r"requests of 120 bytes wait in this replica, at most 100 may; .*max_queue_bytes",
        ):
            b.batcher.submit(text_call(), outputs_of)
        large.cancel()
        await asyncio.sleep(0)
        waiting = [b.batcher.submit(text_call(), outputs_of, num_bytes=60) for _ in range(2)]
        with pytest.raises(OverloadedError):
            b.batcher.admit()
        assert b.dropped.count(Dropped.REFUSED) == 2
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        b.batcher.admit()


async def test_expired_calls_make_room_in_a_full_queue() -> None:
    async with bench(text_model(max_queue=1)) as b:
        held = await hold_engine(b)
        (late,) = await queue(b, [text_call()], deadline_s=101.0)
        b.clock.now_s = 102.0
        (fresh,) = await queue(b, [text_call()])
        with pytest.raises(DeadlineExceededError):
            await late
        b.engine.may_run.set()
        await asyncio.gather(held, fresh)


async def test_an_expired_call_never_runs() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        (late,) = await queue(b, [text_call(rows=2)], deadline_s=105.0)
        (timely,) = await queue(b, [text_call(rows=3)], deadline_s=107.0)
        b.clock.now_s = 106.0
        b.engine.may_run.set()
        await asyncio.gather(held, timely)
        with pytest.raises(DeadlineExceededError, match="waited 6000 ms .* 5000 ms were"):
            await late
        assert b.engine.ran == [(1, 2), (3, 2)]


async def test_a_cancelled_call_leaves_the_queue() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        gone, stays = await queue(b, [text_call(rows=2), text_call(rows=3)])
        assert b.batcher.num_waiting == 2
        gone.cancel()
        await asyncio.sleep(0)
        assert b.batcher.num_waiting == 1
        b.engine.may_run.set()
        await asyncio.gather(held, stays)
        assert b.engine.ran == [(1, 2), (3, 2)]


async def test_cancelling_a_running_call_harms_no_companion() -> None:
    async with bench(text_model()) as b:
        held = await hold_engine(b)
        held.cancel()
        (other,) = await queue(b, [text_call()])
        b.engine.may_run.set()
        assert_own(text_call(), await other)
        assert held.cancelled()


async def test_rows_are_counted_where_requests_run_one_by_one() -> None:
    model = text_model()
    found = TensorSpec(name="found", datatype="INT64", shape=("batch", "found"))
    master = model.master.model_copy(update={"outputs": (*model.master.outputs, found)})
    async with bench(model.model_copy(update={"master": master})) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call(rows=8), text_call(rows=2)])
        b.engine.may_run.set()
        await asyncio.gather(held, *waiting)
        assert [report.rows for report in b.reports] == [(1,), (8,), (2,)]


async def _ran_together(b: Bench) -> bool:
    """Whether two calls, the second a turn of the loop after the first, share a run."""
    num_before = len(b.engine.ran)
    first = b.batcher.submit(text_call(), outputs_of)
    await asyncio.sleep(0)
    await asyncio.gather(first, b.batcher.submit(text_call(), outputs_of))
    return len(b.engine.ran) == num_before + 1


async def test_a_brief_engine_waits_a_turn_for_company_until_none_has_come_for_long() -> None:
    async with bench(text_model()) as b:
        b.worker.replace(changed(b.worker.executor, is_brief=True))
        assert await _ran_together(b)
        for _ in range(20):
            await submit(b.batcher, text_call())
        assert not await _ran_together(b)
        await asyncio.gather(*(submit(b.batcher, text_call()) for _ in range(2)))
        assert await _ran_together(b)
