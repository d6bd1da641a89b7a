"""Which calls of one length share a batch: the answer is that of asking every bucket each time."""

import asyncio
import random

import pytest

from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Bucket, DimRange
from services.replica.batching.batch_builder import BatchBuilder
from services.replica.batching.collate import JoinRules
from services.replica.batching.queue import QueuedRequest, RequestQueue
from services.replica.engine.worker import EngineWorker
from services.replica.request.signature import Signature, fits
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    Clock,
    ToyEngine,
    executor_of,
    outputs_of,
    text_call,
)

MODEL = text_model()
RULES = JoinRules.from_model(MODEL, Signature.from_model(MODEL))


def _bucket(**largest: int) -> Bucket:
    return Bucket(dims={dim: DimRange(min=1, opt=1, max=size) for dim, size in largest.items()})


BUCKETS = (_bucket(batch=8, sequence=4), _bucket(batch=2, sequence=16), _bucket(batch=5))


def _builder(
    buckets: tuple[Bucket, ...], calls: list[tuple[int, int]], *, pads_to_largest: bool = False
) -> BatchBuilder:
    """What forms batches of waiting calls, each given as rows and length."""
    line = RequestQueue(Batching(), clock := Clock())
    loop = asyncio.get_running_loop()
    for rows, length in calls:
        call, answer = text_call(rows, length), loop.create_future()
        line.add(QueuedRequest(call, outputs_of, lambda _: None, answer, clock()), None)
    executor = executor_of(ToyEngine(), buckets, pads_to_largest=pads_to_largest)
    return BatchBuilder(line, RULES, EngineWorker(executor, clock=clock), max_waste=0.25)


def _rows_taken(former: BatchBuilder) -> list[int]:
    return [waiting.call.sizes["batch"] for waiting in former.take()]


@pytest.mark.parametrize("buckets", [BUCKETS, BUCKETS[:2], BUCKETS[:1]])
async def test_what_fits_is_what_some_bucket_holds(buckets: tuple[Bucket, ...]) -> None:
    draw = random.Random(7)
    for _ in range(300):
        length = draw.choice((2, 4, 9))
        calls = [(draw.choice((1, 1, 1, 2, 3)), length) for _ in range(12)]
        wanted = [calls[0][0]]
        for rows, _ in calls[1:]:
            sizes = {"batch": sum(wanted) + rows, "sequence": length}
            if any(fits(bucket, sizes, RULES.growing) for bucket in buckets):
                wanted.append(rows)
        assert _rows_taken(_builder(buckets, calls)) == wanted


@pytest.mark.parametrize(
    ("calls", "taken"),
    [
        ([(1, 4)] * 300, 128),  # more than a choice is made of, and still a full batch
        ([(1, 4)] * 127, 64),  # two runs that are full, and not one that is half empty
        ([(32, 4)] * 9, 128),
        ([(100, 4), (40, 4), (28, 4)], 128),  # the oldest, and what fills it
        ([(1, 4)] * 5, 5),
    ],
)
async def test_static_batches_of_one_length_are_full(
    calls: list[tuple[int, int]], taken: int
) -> None:
    buckets = tuple(_bucket(batch=size, sequence=16) for size in (1, 8, 64, 128))
    former = _builder(buckets, calls, pads_to_largest=True)
    assert sum(_rows_taken(former)) == taken


async def test_a_bucket_without_rows_bounds_none() -> None:
    former = _builder((_bucket(sequence=4),), [(1000, 4), (1000, 4), (1, 5)])
    assert _rows_taken(former) == [1000, 1000]


async def test_a_first_call_is_taken_whatever_its_sizes() -> None:
    former = _builder(BUCKETS[:1], [(1, 99), (1, 99)])
    assert former.is_batch_waiting()
    assert _rows_taken(former) == [1]


@pytest.mark.parametrize(
    ("buckets", "calls", "is_waiting"),
    [
        (BUCKETS[:1], [(1, 4)] * 7, False),
        (BUCKETS[:1], [(1, 4)] * 8, True),
        (BUCKETS[:1], [(4, 4), (5, 4)], True),  # more than it holds
        (BUCKETS[:2], [(1, 4)], False),
        (BUCKETS[:2], [(1, 4), (1, 16)], True),  # the smaller one is full
    ],
)
async def test_a_batch_waits_once_it_fills_a_bucket(
    buckets: tuple[Bucket, ...], calls: list[tuple[int, int]], *, is_waiting: bool
) -> None:
    assert _builder(buckets, calls).is_batch_waiting() is is_waiting


async def test_nothing_is_taken_of_an_empty_queue() -> None:
    static = Bucket(dims={"batch": DimRange(min=4, opt=4, max=4)})
    assert _rows_taken(_builder((static,), [])) == []
