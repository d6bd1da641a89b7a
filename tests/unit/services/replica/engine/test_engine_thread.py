"""Which thread an engine runs on, and what the event loop waits for."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
import torch

from services.contracts.kserve.tensors import Array
from services.replica.engine.loaded_engine import LoadedEngine
from tests.unit.services.replica.engine_pair import (
    LIMIT_S,
    Pair,
    noting,
    open_pair,
    samples,
)
from tests.unit.services.replica.toy_batcher import (
    ToyEngine,
    assert_own,
    executor_of,
    submit,
    text_call,
)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_pair() as opened:
        yield opened


def note_threads(engine: ToyEngine) -> list[bool]:
    """Whether each run is on the thread of the event loop."""
    plain_run = engine.run
    loop_thread = threading.current_thread()
    found: list[bool] = []

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found.append(threading.current_thread() is loop_thread)
        return plain_run(inputs)

    engine.run = run  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("is_brief_alone", [True, False])
async def test_a_call_that_is_alone_is_spared_the_way_to_another_thread(
    pair: Pair, *, is_brief_alone: bool
) -> None:
    pair.set_facts(is_brief_alone=is_brief_alone)
    are_on_loop = note_threads(pair.engine)
    assert_own(text_call(), await submit(pair.batcher, text_call()))
    assert are_on_loop == [is_brief_alone]
    await asyncio.gather(*(submit(pair.batcher, text_call()) for _ in range(2)))
    assert are_on_loop == [is_brief_alone, False]


async def test_a_call_that_is_alone_waits_for_what_the_engine_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.set_facts(is_brief_alone=True)
    are_on_loop = note_threads(pair.engine)
    pair.engine.may_run.clear()
    proof = asyncio.create_task(pair.worker.prove(samples(16)))
    assert await asyncio.to_thread(pair.engine.is_running.wait, 30)
    # No request waits for it any more, and still the engine is at it.
    proof.cancel()
    thread, is_in_line = pair.worker.executor.thread, asyncio.Event()
    monkeypatch.setattr(thread, "submit", noting(thread.submit, is_in_line))
    answer = asyncio.create_task(submit(pair.batcher, text_call(length=2)))
    await is_in_line.wait()
    pair.engine.may_run.set()
    assert_own(text_call(length=2), await answer)
    assert are_on_loop == [False, False]
    await submit(pair.batcher, text_call())
    assert are_on_loop == [False, False, True]


async def test_beside_an_engine_that_loads_no_call_holds_the_event_loop(pair: Pair) -> None:
    pair.set_facts(is_brief_alone=True)
    are_on_loop = note_threads(pair.engine)
    may_load = threading.Event()
    loading = asyncio.create_task(pair.standby.load_beside(lambda: may_load.wait(30) and None))
    await asyncio.sleep(0)
    await submit(pair.batcher, text_call())
    may_load.set()
    assert await loading is None
    await submit(pair.batcher, text_call())
    assert are_on_loop == [False, True]


async def test_of_two_that_load_the_first_to_end_leaves_the_other_to_count(pair: Pair) -> None:
    may_load = threading.Event()
    loading = asyncio.create_task(pair.standby.load_beside(lambda: may_load.wait(30) and None))
    await asyncio.sleep(0)
    assert await pair.standby.load_beside(lambda: None) is None
    assert pair.standby.is_loading
    may_load.set()
    await loading
    assert not pair.standby.is_loading


async def test_an_engine_that_loads_when_it_is_waited_for_no_more_is_closed(pair: Pair) -> None:
    is_held, may_load, is_closed = (threading.Event() for _ in range(3))
    late = executor_of(ToyEngine()).loaded
    late.engine.close = is_closed.set  # type: ignore[method-assign]

    def load() -> LoadedEngine:
        is_held.set()
        assert may_load.wait(30)
        return late

    loading = asyncio.create_task(pair.standby.load_beside(load))
    assert await asyncio.to_thread(is_held.wait, 30)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert not pair.standby.is_loading
    may_load.set()
    assert await asyncio.to_thread(is_closed.wait, 30)


@pytest.mark.parametrize(
    ("facts", "work"),
    [
        ({"is_brief_alone": True}, lambda pair: submit(pair.batcher, text_call())),
        ({"is_brief": True}, lambda pair: pair.worker.prove(samples(1))),
    ],
    ids=["call", "proof"],
)
async def test_what_holds_the_event_loop_is_seen_from_other_threads(
    pair: Pair, facts: dict[str, bool], work: Callable[[Pair], Awaitable[object]]
) -> None:
    pair.set_facts(**facts)
    pair.engine.may_run.clear()

    def look() -> bool:
        assert pair.engine.is_running.wait(30)
        pair.clock.now_s += LIMIT_S + 1
        is_seen = pair.worker.is_loop_held
        pair.engine.may_run.set()
        return is_seen

    looking = asyncio.get_running_loop().run_in_executor(None, look)
    await work(pair)
    assert await looking
    assert not pair.worker.is_loop_held


@pytest.mark.parametrize("has_cuda", [True, False])
async def test_what_torch_keeps_of_a_closed_engine_is_freed_where_it_has_cuda(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_cuda: bool
) -> None:
    engine, freed = ToyEngine(), list[int]()
    if has_cuda:
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(engine.num_closed))
    await executor_of(engine).close()
    assert engine.num_closed == 1
    # After the engine, or it would be kept.
    assert freed == ([1] if has_cuda else [])
    # Without CUDA there is nothing, and nothing fails.
    assert not caplog.records
