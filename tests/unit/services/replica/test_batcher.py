"""Batches form as they should, and everybody gets exactly their own rows."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
)
from services.contracts.manifest import ModelVersion
from services.contracts.recipe import Bucket, DimRange
from services.contracts.tensors import Array
from services.replica.batcher import Batcher, BatchReport
from services.replica.codec import InferCall
from services.replica.engine_seat import EngineSeat, EngineThread
from services.replica.engine_worker import MAX_FAILURES_IN_A_ROW, STALL_S, EngineWorker
from services.replica.joining import JoinRules
from services.replica.signature import Signature

from .models import text_model


class ToyEngine:
    """Positions times 10 where the mask is 1, and their sum: padding must not matter."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, ...]] = []
        self.may_run = threading.Event()
        self.may_run.set()
        self.is_running = threading.Event()
        self.error_by_run: dict[int, Exception] = {}
        self.num_closed = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute when the test lets it."""
        self.is_running.set()
        assert self.may_run.wait(30)
        self.is_running.clear()
        ids, mask = inputs["ids"], inputs["mask"]
        self.ran.append(ids.shape)
        if error := self.error_by_run.get(len(self.ran) - 1):
            raise error
        positions = ids * mask * 10
        return {"positions": positions, "pooled": positions.sum(axis=1, keepdims=True)}

    def close(self) -> None:
        """Count."""
        self.num_closed += 1


@dataclass
class Clock:
    """Seconds that pass when told."""

    now_s: float = 100.0

    def __call__(self) -> float:
        """The time now."""
        return self.now_s


@dataclass
class Bench:
    """A batcher over a toy engine."""

    batcher: Batcher
    worker: EngineWorker
    engine: ToyEngine
    clock: Clock
    reports: list[BatchReport] = field(default_factory=list)


@asynccontextmanager
async def bench(model: ModelVersion) -> AsyncIterator[Bench]:
    engine, clock, reports = ToyEngine(), Clock(), []
    seat = EngineSeat(engine=engine, buckets=model.recipe.buckets, thread=EngineThread())
    worker = EngineWorker(seat, clock=clock)
    rules = JoinRules.from_model(model, Signature.from_model(model))
    batcher = Batcher(worker, rules, model.recipe.batching, on_batch=reports.append, clock=clock)
    batcher.start()
    try:
        yield Bench(batcher, worker, engine, clock, reports)
    finally:
        engine.may_run.set()
        await batcher.close()
        await worker.seat.close()


def text_call(
    rows: int = 1, length: int = 2, first: int = 1, outputs: tuple[str, ...] | None = None
) -> InferCall:
    ids = np.arange(first, first + rows * length, dtype=np.int64).reshape(rows, length)
    return InferCall(
        inputs={"ids": ids, "mask": np.ones_like(ids)},
        sizes={"batch": rows, "sequence": length},
        outputs=outputs or ("positions", "pooled"),
    )


def expected_of(call: InferCall) -> dict[str, Array]:
    positions = call.inputs["ids"] * 10
    both = {"positions": positions, "pooled": positions.sum(axis=1, keepdims=True)}
    return {name: both[name] for name in call.outputs}


def assert_own(call: InferCall, answer: Mapping[str, Array]) -> None:
    for name, wanted in expected_of(call).items():
        np.testing.assert_array_equal(answer[name], wanted)


async def submit(
    batcher: Batcher, call: InferCall, deadline_s: float | None = None
) -> dict[str, Array]:
    """Wait for a call's outputs."""
    return await batcher.submit(call, dict, deadline_s)


async def hold_engine(b: Bench) -> asyncio.Task[dict[str, Array]]:
    """Start a call that keeps the engine busy until `may_run` is set."""
    b.engine.may_run.clear()
    held = asyncio.create_task(submit(b.batcher, text_call()))
    await asyncio.to_thread(b.engine.is_running.wait, 30)
    return held


async def queue(
    b: Bench, calls: list[InferCall], **options: float
) -> list[asyncio.Task[dict[str, Array]]]:
    tasks = [asyncio.create_task(submit(b.batcher, call, **options)) for call in calls]
    await asyncio.sleep(0)
    return tasks


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
        calls = [text_call(rows=1, length=length) for length in (3, 9, 1)]
        waiting = await queue(b, calls)
        b.engine.may_run.set()
        await held
        for call, answer in zip(calls, await asyncio.gather(*waiting), strict=True):
            assert_own(call, answer)
        assert b.engine.ran[1:] == [(3, 9)]


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
        return Bucket(dims={"batch": DimRange(min=1, opt=1, max=batch),
                            "sequence": DimRange(min=1, opt=1, max=sequence)})  # fmt: skip

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
        with pytest.raises(DeadlineExceededError, match=r"expired after 6\.000 s in the queue"):
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


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (EngineError("out of memory"), EngineError),
        (RuntimeError("library says no"), EngineError),
        (InvalidRequestError("outside every bucket"), InvalidRequestError),
    ],
)
async def test_an_engine_failure_fails_its_own_batch_only(
    raised: Exception, seen: type[Exception]
) -> None:
    async with bench(text_model(max_batch=2)) as b:
        held = await hold_engine(b)
        waiting = await queue(b, [text_call() for _ in range(4)])
        b.engine.error_by_run[1] = raised
        b.engine.may_run.set()
        await held
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [seen, seen, dict, dict]
        assert str(raised) in str(results[0])
        assert [report.times is None for report in b.reports] == [False, True, False]


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
