"""Latency of engines beside eager PyTorch and the fallback, call by call, in one process.

All sides take turns, one measured call each, so that a change of clock or load meets all alike;
every round has another order, so that none always runs after the same one. Before it a short
call is made once unmeasured: the caches are the side's own then, and other sides' threads have
stopped to spin for work. What the baseline seems to gain on its own call of the round before is
noise; what threads waited for a CPU is caused by other processes (see `paired`).

All take and give numpy arrays, as a replica does; eager is the master's own float32 graph,
whatever the engine's precision, so that speed-ups of all engines of a model can be compared. Where
the fallback is the baseline, eager decides nothing and takes part in one round of three.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from statistics import median

import numpy as np

from compiler_worker.inputs.sampling import Sample
from compiler_worker.memory import memory_peak
from compiler_worker.references.models import Model
from compiler_worker.timing.cpu_waits import cpu_times
from compiler_worker.timing.paired import FEWEST_PAIRS, TimedCall, is_decided, ratio_of
from services.contracts.hardware.facts import Platform
from services.contracts.model.manifest import SideTiming
from services.contracts.model.recipe import Recipe
from services.contracts.ratio import Ratio
from services.contracts.selection.joint_run import JointTiming

# A verdict on 5 % is of use; narrower intervals take more time than they change.
_CLOSE = 1.05


@dataclass(frozen=True, kw_only=True)
class BenchmarkLimits:
    """How long to measure.

    Attributes:
        seconds_per_side: time that the sides are measured for at one shape, on average.
        patience: how many times longer, and how many times the calls, where the interval of a
            ratio is not close by then, and the ratios leave a decision open.
        min_iterations: calls of each side even when they take longer than that; never fewer than
            tell an interval.
        max_iterations: calls after which a close interval is close enough.
        warm_below_s: calls that take longer are not made once before they are measured.
    """

    seconds_per_side: float = 0.5
    patience: float = 3.0
    min_iterations: int = 10
    max_iterations: int = 500
    warm_below_s: float = 0.02


# Ten calls of a slow shape tell little: where they leave a decision open, it has so many times as
# long for more of them.
_SLOW = 4.0
# Eager beside a fallback: enough calls for its median.
_CONTEXT_EVERY = 3


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What is timed.

    Attributes:
        held_bytes: memory that loading it used.
        is_context: it decides nothing, and is called less often.
    """

    model: Model
    held_bytes: int = 0
    is_context: bool = False


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Engines of one master and what they are timed beside.

    Attributes:
        engines: by digest.
        fallback: None when this machine has none of the model.
        platform: whose memory is measured.
    """

    engines: Mapping[str, Contender]
    eager: Contender
    fallback: Contender | None = None
    platform: Platform = Platform.CPU


@dataclass
class _Side:
    contender: Contender
    platform: Platform
    added_bytes: int = 0
    calls: list[TimedCall] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [call.seconds for call in self.calls]

    def take_turn(self, sample: Sample, limits: BenchmarkLimits) -> None:
        model = self.contender.model
        if not self.calls:
            with memory_peak(self.platform) as peak:
                model.run(sample.inputs)
            self.added_bytes = peak.num_bytes
        is_warmed = bool(self.calls) and self.calls[-1].seconds < limits.warm_below_s
        # Looked at before the call that warms, as looking takes the caches.
        before = cpu_times()
        # Read beside the calls: with hundreds of threads, looking at all of them takes longer.
        process_s = time.process_time()
        own_s = time.thread_time()
        began = time.perf_counter()
        if is_warmed:
            model.run(sample.inputs)
        started = time.perf_counter()
        model.run(sample.inputs)
        ended = time.perf_counter()
        own_s = time.thread_time() - own_s
        process_s = time.process_time() - process_s
        after = cpu_times()
        waited_s = after.waited_since(before)
        num_calls = 1 + is_warmed
        # A call of another device goes on while no thread of the host computes.
        is_computing = self.platform is Platform.CPU
        self.calls.append(
            TimedCall(
                seconds=ended - started,
                waited_share=waited_s / (ended - began),
                least_s=max(
                    max(own_s, after.busiest_other_since(before)) / num_calls,
                    ended - started - waited_s,
                ),
                most_s=process_s / num_calls if is_computing else inf,
            )
        )

    def timing(self, num_samples: int, ratio: Ratio | None) -> SideTiming:
        p50_s = median(self.seconds)
        return SideTiming(
            p50_s=p50_s,
            p95_s=float(np.quantile(self.seconds, 0.95)),
            throughput=num_samples / p50_s,
            peak_memory_bytes=self.contender.held_bytes + self.added_bytes,
            ratio=ratio,
        )


def benchmark(
    contest: Contest, sample: Sample, recipe: Recipe, limits: BenchmarkLimits
) -> JointTiming:
    """Time engines beside eager and the fallback at one sample's shape.

    Args:
        contest: the engines, eager and perhaps a fallback, loaded.
        sample: the shape and its inputs.
        recipe: names the batch dimension.
        limits: how long to measure.
    """
    fallback = [contest.fallback] if contest.fallback else []
    eager = replace(contest.eager, is_context=bool(fallback))
    sides = [*contest.engines.values(), eager, *fallback]
    times = time_sides(sides, contest.platform, sample, recipe, limits)
    return JointTiming(
        bucket=sample.bucket,
        sizes=sample.sizes,
        engines=dict(zip(contest.engines, times, strict=False)),
        eager=times[len(contest.engines)],
        fallback=times[-1] if fallback else None,
    )


def time_sides(
    contenders: Sequence[Contender],
    platform: Platform,
    sample: Sample,
    recipe: Recipe,
    limits: BenchmarkLimits,
) -> list[SideTiming]:
    """Time any number of sides at one sample's shape; the last one is the baseline.

    Args:
        contenders: loaded; the last one is the baseline.
        platform: whose memory is measured.
        sample: the shape and its inputs.
        recipe: names the batch dimension.
        limits: how long to measure.

    Returns:
        Seconds of a call, samples per second, bytes and the ratio to the baseline, one by one as
        `contenders`.
    """
    sides = [_Side(contender, platform) for contender in contenders]
    numbers = count()
    _take_rounds(sides, numbers, sample, replace(limits, patience=1.0))
    # Looked at once: of many looks one would find intervals that only seem to decide.
    if not is_decided([ratio for ratio in _ratios(sides)[:-1] if ratio]):
        _take_rounds(sides, numbers, sample, limits)
    num_samples = sample.sizes.get(recipe.batching.batch_dim or "", 1)
    ratios = _ratios(sides)
    return [side.timing(num_samples, ratio) for side, ratio in zip(sides, ratios, strict=True)]


def _take_rounds(
    sides: Sequence[_Side], numbers: Iterator[int], sample: Sample, limits: BenchmarkLimits
) -> None:
    while not _is_enough(sides, limits):
        for side in _in_order(sides, next(numbers)):
            side.take_turn(sample, limits)


def _in_order(sides: Sequence[_Side], number: int) -> Sequence[_Side]:
    """Who takes part in a round: each is first, and follows each other one, in its turn.

    The order of Williams (Australian Journal of Scientific Research A 2, 1949), turned each
    round, and backwards every other one.
    """
    is_for_all = number % _CONTEXT_EVERY == 0
    taking = [side for side in sides if is_for_all or not side.contender.is_context]
    zigzag = [(i + 1) // 2 * (-1) ** i for i in range(len(taking))]
    turned = [taking[(number // 2 + place) % len(taking)] for place in zigzag]
    return turned[::-1] if number % 2 else turned


def _ratios(sides: Sequence[_Side]) -> list[Ratio | None]:
    """Of all sides to the baseline, and of that to its own calls of the round before."""
    *others, baseline = sides
    to_others = [
        None if side.contender.is_context else ratio_of(baseline.calls, side.calls)
        for side in others
    ]
    return [*to_others, ratio_of(baseline.calls[:-1], baseline.calls[1:])]


def _is_enough(sides: Sequence[_Side], limits: BenchmarkLimits) -> bool:
    num_calls = len(sides[-1].calls)
    elapsed_s = sum(sum(side.seconds) for side in sides) / len(sides)
    if num_calls < max(limits.min_iterations, FEWEST_PAIRS + 1):
        return False
    most_s = limits.seconds_per_side
    most_calls = limits.max_iterations
    longest_s = limits.patience * most_s
    if num_calls < limits.patience * limits.min_iterations:
        longest_s *= _SLOW
    if num_calls >= limits.patience * most_calls or elapsed_s >= longest_s:
        return True
    return (num_calls >= most_calls or elapsed_s >= most_s) and _are_close(sides)


def _are_close(sides: Sequence[_Side]) -> bool:
    """Whether the bounds of each ratio are close enough to tell."""
    return all(ratio.high < _CLOSE * ratio.low for ratio in _ratios(sides) if ratio)
