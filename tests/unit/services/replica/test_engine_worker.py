"""The engine worker when engines hang, fail, and are replaced while something is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from services.contracts.errors import EngineError
from services.replica.batcher import Batcher
from services.replica.engine_seat import EngineSeat, EngineThread
from services.replica.engine_worker import MAX_FAILURES_IN_A_ROW, EngineWorker
from services.replica.joining import JoinRules
from services.replica.loaded_engine import STALL_S, LoadedEngine, stall_limit_s
from services.replica.signature import Signature
from services.replica.standby import SeatedEngine, Standby

from .batching import Clock, ToyEngine, assert_own, submit, text_call
from .models import text_model

LIMIT_S = 20.0


@dataclass
class Pair:
    """A batcher over an engine in use and the one before it."""

    batcher: Batcher
    worker: EngineWorker
    standby: Standby
    clock: Clock
    engine: ToyEngine
    before: ToyEngine
    returns: list[str] = field(default_factory=list)

    def keep_before(self) -> None:
        """Hold the engine before as the standby."""
        seat = seat_of(self.before)
        loaded = LoadedEngine(
            engine=self.before, buckets=seat.buckets, kind="toy", precision="fp32", generation="x"
        )
        self.standby.keep(SeatedEngine(loaded=loaded, seat=seat))


def seat_of(engine: ToyEngine) -> EngineSeat:
    buckets = text_model().recipe.buckets
    return EngineSeat(engine=engine, buckets=buckets, thread=EngineThread(), stall_s=LIMIT_S)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_pair() as opened:
        yield opened


@asynccontextmanager
async def open_pair() -> AsyncIterator[Pair]:
    model, clock, standby = text_model(), Clock(), Standby(600.0)
    engine, before, returns = ToyEngine(), ToyEngine(), []
    worker = EngineWorker(
        seat_of(engine),
        standby,
        on_return=lambda engine, seat, words: (returns.append(words), standby.close_soon(seat)),
        clock=clock,
    )
    rules = JoinRules.from_model(model, Signature.from_model(model))
    batcher = Batcher(worker, rules, model.recipe.batching, clock=clock)
    batcher.start()
    try:
        yield Pair(batcher, worker, standby, clock, engine, before, returns)
    finally:
        engine.may_run.set()
        before.may_run.set()
        await batcher.close()
        standby.close_soon(worker.seat)
        await standby.drop()


async def hold(pair: Pair, engine: ToyEngine) -> "asyncio.Task[dict[str, object]]":
    """Send a call that the engine keeps."""
    engine.may_run.clear()
    call = asyncio.create_task(submit(pair.batcher, text_call()))
    assert await asyncio.to_thread(engine.is_running.wait, 30)
    return call


@pytest.fixture
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.replica.engine_worker._SECOND_LOOK_S", 0.0)


# ---------------------------------------------------------------- engines that hang


@pytest.mark.usefixtures("no_second_look")
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
    assert pair.worker.seat.engine is pair.before
    # What comes back after all counts for nothing and is closed.
    pair.engine.may_run.set()
    await pair.standby.drop()
    assert pair.engine.num_closed == 1
    assert_own(text_call(), await submit(pair.batcher, text_call()))
    assert not pair.worker.is_stalled


@pytest.mark.usefixtures("no_second_look")
async def test_without_an_engine_before_a_hang_is_for_the_health_check(pair: Pair) -> None:
    held = await hold(pair, pair.engine)
    pair.clock.now_s += LIMIT_S + 1
    assert not await pair.worker.leave_hung()
    assert pair.worker.is_stalled
    pair.engine.may_run.set()
    assert_own(text_call(), await held)


@pytest.mark.usefixtures("no_second_look")
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


@pytest.mark.usefixtures("no_second_look")
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


async def test_a_process_that_stood_still_does_not_leave_its_engine(pair: Pair) -> None:
    pair.keep_before()
    held = await hold(pair, pair.engine)
    pair.clock.now_s += LIMIT_S + 1
    leaving = asyncio.create_task(pair.worker.leave_hung())
    await asyncio.sleep(0)
    pair.engine.may_run.set()
    assert await leaving
    assert_own(text_call(), await held)
    assert (pair.worker.seat.engine, pair.returns) == (pair.engine, [])


@pytest.mark.usefixtures("no_second_look")
async def test_closing_while_an_engine_is_being_left_ends_the_batcher(pair: Pair) -> None:
    pair.keep_before()
    held = await hold(pair, pair.engine)
    pair.clock.now_s += LIMIT_S + 1
    assert await pair.worker.leave_hung()
    await pair.batcher.close()
    assert not pair.batcher.is_alive
    with pytest.raises(Exception, match="stopped"):
        await held


async def test_a_batch_that_waits_behind_a_hung_proof_stalls_too(pair: Pair) -> None:
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(text_call().inputs))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    waiting = asyncio.create_task(submit(pair.batcher, text_call()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pair.clock.now_s += LIMIT_S + 1
    assert pair.worker.is_stalled
    pair.engine.may_run.set()
    await asyncio.gather(proof, waiting)


# ---------------------------------------------------------------- asked and replaced meanwhile


def fail_always(engine: ToyEngine) -> None:
    engine.error_by_run = {number: RuntimeError("broken") for number in range(100)}


async def proof_that_asks_before(pair: Pair) -> asyncio.Task[None]:
    """The engine in use fails a proof; the one before is asked too, and has not answered."""
    fail_always(pair.engine)
    pair.keep_before()
    pair.before.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(text_call().inputs))
    assert await asyncio.to_thread(pair.before.is_running.wait, 30)
    return proof


async def ask_and_replace(pair: Pair, replace: Callable[[], object]) -> None:
    """Prove the engine in use, and replace it before it answers."""
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(text_call().inputs))
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
    await ask_and_replace(pair, lambda: pair.standby.close_soon(pair.worker.replace(seat_of(new))))
    assert pair.worker.seat.engine is new
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
    proof = asyncio.create_task(pair.worker.prove(text_call().inputs))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    pair.standby.close_soon(pair.worker.replace(seat_of(new)))
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


async def test_an_engine_that_was_replaced_is_not_counted_against_the_next(pair: Pair) -> None:
    fail_always(pair.engine)
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        with pytest.raises(EngineError):
            await submit(pair.batcher, text_call())
    held = await hold(pair, pair.engine)
    new = ToyEngine()
    fail_always(new)
    pair.standby.close_soon(pair.worker.replace(seat_of(new)))
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
    assert pair.worker.seat.engine is pair.before
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
    await pair.worker.prove(text_call(first=10).inputs)
    assert not pair.worker.is_suspect
    assert (pair.worker.seat.engine, pair.returns) == (pair.engine, [])


async def test_a_suspect_engine_that_fails_its_proof_is_left(pair: Pair) -> None:
    pair.keep_before()
    fail_always(pair.engine)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert_own(text_call(), await submit(pair.batcher, text_call()))
    await pair.worker.prove(text_call(first=10).inputs)
    assert pair.worker.seat.engine is pair.before
    assert pair.returns == ["engine fails on inputs that are known to be good: broken"]


async def test_a_batch_is_busy_time_while_it_runs_and_counts_once(pair: Pair) -> None:
    held = await hold(pair, pair.engine)
    pair.clock.now_s += 5
    assert pair.worker.busy_s == 5
    pair.clock.now_s += 2
    pair.engine.may_run.set()
    await held
    pair.clock.now_s += 30
    assert pair.worker.busy_s == 7


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
