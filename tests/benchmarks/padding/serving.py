"""The real batcher on one engine, and requests of which so many are outstanding at any time."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.replica.batching.batch_report import BatchReport
from services.replica.batching.batcher import Batcher
from services.replica.batching.collate import JoinRules
from services.replica.batching.run_shapes import elements_of
from services.replica.engine.executor import EngineExecutor
from services.replica.engine.worker import EngineWorker
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature
from tests.benchmarks.padding.subject import OUTPUT


@dataclass
class Side:
    """One way to serve the same requests.

    Attributes:
        rates: requests per second, by round.
        real, ran, runs: elements of requests, those computed, and runs, over all rounds.
        batches: runs by their rows.
    """

    name: str
    batcher: Batcher
    executor: EngineExecutor
    rates: list[float] = field(default_factory=list)
    real: int = 0
    ran: int = 0
    runs: int = 0
    batches: Counter[int] = field(default_factory=Counter)

    def count(self, report: BatchReport) -> None:
        """Add a batch."""
        self.runs += 1
        self.batches[sum(report.rows)] += 1
        self.real += sum(elements_of(call.sizes) for call in report.calls)
        self.ran += report.times.num_elements if report.times else 0

    def forget(self) -> None:
        """Begin to count anew."""
        self.rates.clear()
        self.batches.clear()
        self.real = self.ran = self.runs = 0

    @property
    def waste(self) -> float:
        """The share of padding in what was computed."""
        return 1 - self.real / self.ran


def side_of(name: str, version: ModelVersion, executor: EngineExecutor) -> Side:
    """A batcher that has begun.

    Args:
        name: of the side.
        version: of the model, with its batching.
        executor: of its engine.
    """
    rules = JoinRules.from_model(version, Signature.from_model(version))
    batcher = Batcher(
        EngineWorker(executor), rules, version.recipe.batching, on_batch=lambda r: side.count(r)
    )
    side = Side(name, batcher, executor)
    batcher.start()
    return side


async def serve(side: Side, mixed: Sequence[InferCall], num_outstanding: int) -> list[Array]:
    """Serve all requests; their answers in order.

    Args:
        side: what serves.
        mixed: the requests.
        num_outstanding: so many at a time.
    """
    answers: list[Array] = [np.empty(0)] * len(mixed)
    left = iter(enumerate(mixed))

    async def client() -> None:
        for place, call in left:
            found = await side.batcher.submit(call, lambda _, outputs: outputs)
            answers[place] = found[OUTPUT]

    began_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_outstanding)))
    side.rates.append(len(mixed) / (time.perf_counter() - began_s))
    return answers


def end_round(sides: Sequence[Side], answers: Sequence[Sequence[Array]], number: int) -> None:
    """Print what all sides reached; the first two answered alike. Rounds below 0 count nothing."""
    print(f"round {number}:", *(f"{s.name} {s.rates[-1]:.1f}/s" for s in sides), flush=True)
    for one, other in zip(*answers[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-2)
    if number < 0:
        for side in sides:
            side.forget()
