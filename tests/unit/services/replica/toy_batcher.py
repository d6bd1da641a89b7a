"""A batcher over an engine that tests can hold, and requests with known answers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket
from services.replica.batching.batch_report import BatchReport
from services.replica.batching.batcher import Batcher
from services.replica.batching.collate import JoinRules
from services.replica.batching.queue import Dropped
from services.replica.engine.executor import EngineExecutor, EngineThread
from services.replica.engine.loaded_engine import LoadedEngine, RunningEngine
from services.replica.engine.worker import EngineWorker
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature


class ToyEngine:
    """Positions times 10 where the mask is 1, and their sum: padding must not matter."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, ...]] = []
        self.first_ids: list[int] = []
        self.may_run = threading.Event()
        self.may_run.set()
        self.is_running = threading.Event()
        self.error_by_run: dict[int, Exception] = {}
        # Of runs that an id is in, as of one outside of a table.
        self.error_by_id: dict[int, Exception] = {}
        self.num_closed = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute when the test lets it."""
        self.is_running.set()
        assert self.may_run.wait(30)
        self.is_running.clear()
        ids, mask = inputs["ids"], inputs["mask"]
        self.ran.append(ids.shape)
        self.first_ids.append(int(ids[0, 0]))
        if error := self.error_by_run.get(len(self.ran) - 1):
            raise error
        for bad_id in self.error_by_id.keys() & set(ids.flat):
            raise self.error_by_id[bad_id]
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
    dropped: list[Dropped] = field(default_factory=list)


def executor_of(
    engine: RunningEngine,
    buckets: tuple[Bucket, ...] = (),
    thread: EngineThread | None = None,
    **facts: Any,
) -> EngineExecutor:
    """An engine on a thread of its own, with facts of a `LoadedEngine`."""
    facts = {"kind": "toy", "precision": "fp32", "generation": "x", **facts}
    loaded = LoadedEngine(engine=engine, buckets=buckets, **facts)
    return EngineExecutor(loaded, thread or EngineThread())


def changed(executor: EngineExecutor, **facts: Any) -> EngineExecutor:
    """The same engine with other facts."""
    return replace(executor, loaded=replace(executor.loaded, **facts))


@asynccontextmanager
async def bench(
    model: ModelVersion, on_batch: Callable[[BatchReport], None] | None = None
) -> AsyncIterator[Bench]:
    engine, clock, reports, dropped = ToyEngine(), Clock(), list[BatchReport](), list[Dropped]()
    executor = executor_of(engine, model.recipe.buckets)
    worker = EngineWorker(executor, clock=clock)
    rules = JoinRules.from_model(model, Signature.from_model(model))
    batcher = Batcher(
        worker,
        rules,
        model.recipe.batching,
        on_batch=on_batch or reports.append,
        on_dropped=dropped.append,
        clock=clock,
    )
    batcher.start()
    try:
        yield Bench(batcher, worker, engine, clock, reports, dropped)
    finally:
        engine.may_run.set()
        await batcher.close()
        await worker.executor.close()


def text_call(
    rows: int = 1, length: int = 2, first: int = 1, outputs: tuple[str, ...] | None = None
) -> InferCall:
    ids = np.arange(first, first + rows * length, dtype=np.int64).reshape(rows, length)
    return InferCall(
        inputs={"ids": ids, "mask": np.ones_like(ids)},
        sizes={"batch": rows, "sequence": length},
        outputs=outputs or ("positions", "pooled"),
    )


def outputs_of(_: InferCall, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """For an answer, the outputs themselves."""
    return dict(outputs)


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
    return await batcher.submit(call, outputs_of, deadline_s)


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
