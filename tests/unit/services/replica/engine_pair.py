"""A batcher over two engines that tests can hold: the one in use and the one before it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.contracts.kserve.tensors import Array
from services.replica.batching.batcher import Batcher
from services.replica.batching.collate import JoinRules
from services.replica.engine.executor import EngineExecutor
from services.replica.engine.standby import Standby
from services.replica.engine.worker import EngineWorker
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    Clock,
    ToyEngine,
    changed,
    executor_of,
    submit,
    text_call,
)

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
        self.standby.keep(limited(self.before))

    def set_facts(self, **facts: bool) -> None:
        """Change what is known of the engine in use."""
        self.worker.executor = changed(self.worker.executor, **facts)


def limited(engine: ToyEngine) -> EngineExecutor:
    """An engine whose runs hang after `LIMIT_S`."""
    return executor_of(engine, text_model().recipe.buckets, stall_s=LIMIT_S)


@asynccontextmanager
async def open_pair(second_look_s: float = 0.0) -> AsyncIterator[Pair]:
    model, clock, standby = text_model(), Clock(), Standby(600.0)
    engine, before, returns = ToyEngine(), ToyEngine(), []
    worker = EngineWorker(
        limited(engine),
        standby,
        on_return=lambda engine, executor, words: (
            returns.append(words),
            standby.close_soon(executor),
        ),
        second_look_s=second_look_s,
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
        standby.close_soon(worker.executor)
        await standby.drop()


async def hold(pair: Pair, engine: ToyEngine) -> "asyncio.Task[dict[str, object]]":
    """Send a call that the engine keeps."""
    engine.may_run.clear()
    call = asyncio.create_task(submit(pair.batcher, text_call()))
    assert await asyncio.to_thread(engine.is_running.wait, 30)
    return call


def samples(*lengths: int) -> Iterator[Mapping[str, Array]]:
    return (text_call(length=length).inputs for length in lengths)


def noting(submit: Callable[..., object], event: asyncio.Event) -> Callable[..., object]:
    """As `submit`, and says when it was called."""

    def submitted(*args: object) -> object:
        event.set()
        return submit(*args)

    return submitted
