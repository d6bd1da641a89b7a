"""Replicas on one device, event by event: requests arrive by chance, runs share the device.

While k replicas run, each gets 1/k of the device (processor sharing), as processes on a GPU do. A
replica alone has all of it.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from services.cli.planning.queue_simulation import MOST_LOOKED_AT, ReplicaQueue

# On one device. Near the most that a replica does, the p99 of so many has a standard deviation of
# 8 % between seeds; of 10,000 it is 7 %.
_NUM_REQUESTS = 6_000
# Of a model that is seldom asked, beside others, as long as all are no more than twice as many.
_FEWEST = 300
# What may be late.
_LATE = 0.01
# A device that does less than this share of its full batches' rate is of no use.
_LEAST_SHARE = 1e-4
# Seeds differ by more.
_SEARCH_RATIO = 1.02


class Part(NamedTuple):
    """One model's replicas on a device, which share its requests per second."""

    queue: ReplicaQueue
    rate: float
    num_replicas: int = 1


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What a model's replicas on a device did under a load.

    Attributes:
        mean_s, p50_s, p99_s: of a request, from its arrival to its answer, without the overhead.
        busy: share of the time that their runs would take of the device if nothing else ran.
        mean_rows: of a batch.
    """

    mean_s: float
    p50_s: float
    p99_s: float
    busy: float
    mean_rows: float


@dataclass(kw_only=True)
class _Answers:
    """Of one model: its requests' latencies in the order of its runs, and what those took."""

    allowed_s: float
    most_late: int
    latencies_s: list[float] = field(default_factory=list)
    num_late: int = 0
    num_runs: int = 0
    run_s: float = 0.0
    end_s: float = 0.0


def simulated(parts: Sequence[Part], seed: int = 0) -> list[Simulated]:
    """What the replicas on a device do, model by model."""
    answers = _answers(parts)
    deque(_runs(parts, answers, seed), 0)
    return [
        _summary(part.queue.demand.rows, each) for part, each in zip(parts, answers, strict=True)
    ]


def keeps_p99(parts: Sequence[Part]) -> bool:
    """Whether each model on the device keeps the p99 of its demand."""
    return all(each.num_late <= each.most_late for each in _runs(parts, _answers(parts), seed=0))


def capacity(queue: ReplicaQueue, num_replicas: int = 1) -> float:
    """The most requests per second of a device that keep the p99; 0 when none do."""
    high = low = _most(queue, num_replicas)
    least = high * _LEAST_SHARE
    # By ratios: a tight p99 may allow a hundredth of what full batches do. What is too much is
    # found out soon, what is not only at the end of a simulation.
    while not keeps_p99([Part(queue, low, num_replicas)]):
        if low <= least:
            return 0.0
        high = low
        low = max(low / 2, least)
    while high > _SEARCH_RATIO * low:
        middle = math.sqrt(low * high)
        if keeps_p99([Part(queue, middle, num_replicas)]):
            low = middle
        else:
            high = middle
    return low


def least_p99_ms(queue: ReplicaQueue) -> float:
    """The smallest `p99_ms` that can be asked for: the p99 of hardly any load."""
    parts = [Part(queue, _most(queue) * _LEAST_SHARE)]
    (answers,) = _answers(parts)
    deque(_runs(parts, [answers], seed=0), 0)
    allowed_s = sorted(answers.latencies_s)[-answers.most_late - 1]
    return math.ceil((allowed_s * 1000 + queue.demand.overhead_ms) * 100) / 100


def _most(queue: ReplicaQueue, num_replicas: int = 1) -> float:
    """Requests per second of full batches, if the processes that decode them keep up."""
    host_s = queue.demand.host_s
    return min(queue.most(), num_replicas / host_s) if host_s else queue.most()


def _answers(parts: Sequence[Part]) -> list[_Answers]:
    found = []
    for part, num in zip(parts, _nums(parts), strict=True):
        demand = part.queue.demand
        allowed_s = (demand.p99_ms - demand.overhead_ms) / 1000
        found.append(_Answers(allowed_s=allowed_s, most_late=int(num * _LATE)))
    return found


def _nums(parts: Sequence[Part]) -> list[int]:
    """Requests of each model, of one time for all."""
    rates = [part.rate for part in parts]
    usual_s = _NUM_REQUESTS / sum(rates)
    seconds = min(max(usual_s, _FEWEST / min(rates)), 2 * usual_s)
    return [max(round(rate * seconds), 1) for rate in rates]


def _summary(rows: int, answers: _Answers) -> Simulated:
    latencies_s = answers.latencies_s
    p50_s, p99_s = np.quantile(latencies_s, (0.5, 1 - _LATE), method="lower").tolist()
    return Simulated(
        mean_s=float(np.mean(latencies_s)),
        p50_s=p50_s,
        p99_s=p99_s,
        busy=answers.run_s / answers.end_s,
        mean_rows=len(latencies_s) * rows / answers.num_runs,
    )


def _runs(parts: Sequence[Part], answers: Sequence[_Answers], seed: int) -> Iterator[_Answers]:
    """Share the device equally among runs; after each of them what there is of its model.

    `served_s` is what each of the runs got that were there from the start.
    """
    random = np.random.default_rng(seed)
    turns = [
        (each, _replica(part.queue, each, *requests))
        for part, each, num in zip(parts, answers, _nums(parts), strict=True)
        for requests in _requests(part, num, random)
    ]
    beginning = [(*next(replica), place) for place, (_, replica) in enumerate(turns)]
    heapify(beginning)
    running: list[tuple[float, int]] = []
    now = served_s = 0.0
    while beginning or running:
        end_s = now + (running[0][0] - served_s) * len(running) if running else math.inf
        if beginning and beginning[0][0] < end_s:
            start_s, run_s, place = heappop(beginning)
            if running:
                served_s += (start_s - now) / len(running)
            now = start_s
            heappush(running, (served_s + run_s, place))
            continue
        served_s, place = heappop(running)
        now = end_s
        found, replica = turns[place]
        try:
            heappush(beginning, (*replica.send(now), place))
        except StopIteration:
            found.end_s = max(found.end_s, now)
        yield found


def _requests(
    part: Part, num: int, random: np.random.Generator
) -> Iterator[tuple[list[float], list[int]]]:
    """When requests come and of which kind they are, of each replica that gets some by chance."""
    queue = part.queue
    arrivals_N = np.cumsum(random.exponential(1 / part.rate, num))
    kinds_N = random.choice(len(queue.kinds), num, p=queue.shares)
    replicas_N = random.integers(part.num_replicas, size=num)
    for replica in np.unique(replicas_N):
        mine_N = replicas_N == replica
        yield arrivals_N[mine_N].tolist(), kinds_N[mine_N].tolist()


def _replica(
    queue: ReplicaQueue, answers: _Answers, arrivals: Sequence[float], kinds: Sequence[int]
) -> Generator[tuple[float, float], float, None]:
    """When runs of one replica begin, and their seconds alone; it is sent when each has ended."""
    host_s = queue.demand.host_s
    waiting: list[int] = []
    now = 0.0
    num_arrived = 0
    while num_arrived < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[num_arrived] + queue.delay_s)
        before = num_arrived
        num_arrived = bisect_right(arrivals, now, before)
        waiting += range(before, num_arrived)
        places, run_s = queue.next_run([*map(kinds.__getitem__, waiting[:MOST_LOOKED_AT])])
        end_s = yield now, run_s
        # Its process decodes and encodes one batch while another runs, and does no more than that.
        now = max(end_s, now + host_s * len(places))
        took_s = [now - arrivals[waiting[place]] for place in places]
        answers.latencies_s += took_s
        # The oldest is always among them, and the first.
        if took_s[0] > answers.allowed_s:
            answers.num_late += sum([each > answers.allowed_s for each in took_s])
        answers.num_runs += 1
        answers.run_s += run_s
        if places[-1] < len(places):
            del waiting[: len(places)]
        else:
            for place in reversed(places):
                del waiting[place]
