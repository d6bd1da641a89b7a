"""Latency of an engine beside eager PyTorch and the fallback, call by call, in one process.

All sides take turns, one measured call each, so that a change of clock or load meets all alike;
every other round goes backwards, so that none always runs after the same one. Before it a short
call is made once unmeasured: the caches are the side's own then, and other sides' threads have
stopped to spin for work. The baseline takes part twice: what it seems to gain on itself is noise.

All take and give numpy arrays, as a replica does; eager is the master's own float32 graph,
whatever the engine's precision, so that speed-ups of all engines of a model can be compared.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from compiler_worker.memory import memory_peak
from compiler_worker.models import Model
from compiler_worker.paired import FEWEST_PAIRS, ratio_of
from compiler_worker.sampling import Sample
from services.contracts.hardware import Platform
from services.contracts.manifest import SideTiming, Timing
from services.contracts.ratio import Ratio
from services.contracts.recipe import Recipe

# Where other work disturbs, three times the calls are made at most.
_PATIENCE = 3
_CLOSE = 1.05


@dataclass(frozen=True, kw_only=True)
class BenchmarkLimits:
    """How long to measure.

    Attributes:
        seconds_per_side: time that the sides are measured for at one shape, on average; three
            times that where the interval of a ratio is not close by then.
        min_iterations: calls of each side even when they take longer than that, unless they
            take three times as long; never fewer than tell an interval.
        max_iterations: calls after which a close interval is close enough.
        warm_below_s: calls that take longer are not made once before they are measured.
    """

    seconds_per_side: float = 0.5
    min_iterations: int = 10
    max_iterations: int = 500
    warm_below_s: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What is timed, and the memory that it took to load it."""

    model: Model
    held_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Contest:
    """An engine and what it is timed beside.

    Attributes:
        fallback: None when this machine has none of the model.
        platform: whose memory is measured.
    """

    engine: Contender
    eager: Contender
    fallback: Contender | None = None
    platform: Platform = Platform.CPU

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All that take part, the engine first."""
        others = (self.eager,) if self.fallback is None else (self.eager, self.fallback)
        return (self.engine, *others)


@dataclass
class _Side:
    contender: Contender
    platform: Platform
    added_bytes: int = 0
    seconds: list[float] = field(default_factory=list)

    def take_turn(self, sample: Sample, limits: BenchmarkLimits) -> None:
        model = self.contender.model
        if not self.seconds:
            with memory_peak(self.platform) as peak:
                model.run(sample.inputs)
            self.added_bytes = peak.num_bytes
        elif self.seconds[-1] < limits.warm_below_s:
            model.run(sample.inputs)
        started = time.perf_counter()
        model.run(sample.inputs)
        self.seconds.append(time.perf_counter() - started)

    def timing(self, num_samples: int, ratio: Ratio) -> SideTiming:
        p50_s = median(self.seconds)
        return SideTiming(
            p50_s=p50_s,
            p95_s=float(np.quantile(self.seconds, 0.95)),
            throughput=num_samples / p50_s,
            peak_memory_bytes=self.contender.held_bytes + self.added_bytes,
            ratio=ratio,
        )


def benchmark(
    contest: Contest, samples: Sequence[Sample], recipe: Recipe, limits: BenchmarkLimits
) -> tuple[Timing, ...]:
    """Time an engine beside eager and the fallback, at each sample's shape."""
    return tuple(_time_at(sample, contest, recipe, limits) for sample in samples)


def race(
    contenders: Sequence[Contender],
    platform: Platform,
    sample: Sample,
    recipe: Recipe,
    limits: BenchmarkLimits,
) -> list[SideTiming]:
    """Time any number of sides at one sample's shape; the last one is the baseline."""
    *others, baseline = (_Side(contender, platform) for contender in contenders)
    again = _Side(baseline.contender, platform)
    # As far from itself as its neighbours are.
    order = [baseline, *others, again]
    while not _is_enough(order, limits):
        for side in order:
            side.take_turn(sample, limits)
        order.reverse()
    num_samples = sample.sizes.get(recipe.batching.batch_dim or "", 1)
    pairs = [*((side, side) for side in others), (baseline, again)]
    return [
        side.timing(num_samples, ratio_of(baseline.seconds, other.seconds)) for side, other in pairs
    ]


def _is_enough(sides: Sequence[_Side], limits: BenchmarkLimits) -> bool:
    num_calls = len(sides[0].seconds)
    elapsed_s = sum(sum(side.seconds) for side in sides) / len(sides)
    if num_calls < FEWEST_PAIRS:
        return False
    most_s, most_calls = limits.seconds_per_side, limits.max_iterations
    if num_calls >= _PATIENCE * most_calls or elapsed_s >= _PATIENCE * most_s:
        return True
    is_long = num_calls >= limits.min_iterations and elapsed_s >= most_s
    return (is_long or num_calls >= most_calls) and _are_close(sides)


def _are_close(sides: Sequence[_Side]) -> bool:
    """Whether the bounds of each ratio to the first side are close enough to tell."""
    baseline, *others = sides
    ratios = (ratio_of(baseline.seconds, side.seconds) for side in others)
    return all(ratio.high < _CLOSE * ratio.low for ratio in ratios)


def _time_at(sample: Sample, contest: Contest, recipe: Recipe, limits: BenchmarkLimits) -> Timing:
    engine, eager, *others = race(contest.contenders, contest.platform, sample, recipe, limits)
    return Timing(
        bucket=sample.bucket,
        sizes=sample.sizes,
        p50_s=engine.p50_s,
        p95_s=engine.p95_s,
        throughput=engine.throughput,
        peak_memory_bytes=engine.peak_memory_bytes,
        eager_p50_s=eager.p50_s,
        eager=eager,
        fallback=others[0] if others else None,
        ratio=engine.ratio,
    )
