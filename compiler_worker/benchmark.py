"""Latency of an engine beside eager PyTorch and the fallback: interleaved, in one process.

Blocks of calls alternate, so that a change of clock or load meets all sides alike. The
first call of a block is not measured: it warms up, and the other sides' threads still spin for
work then, which would make a fast model look many times slower. The median is that of each
side's quietest block, because other work on the machine slows eager's many small kernels
far more than an engine's few; the 95th percentile is over all calls.

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
from compiler_worker.sampling import Sample
from services.contracts.hardware import Platform
from services.contracts.manifest import SideTiming, Timing
from services.contracts.recipe import Recipe

# A call of seconds is not repeated ten times: a median of three tells enough of it.
_FEWEST = 3
_PATIENCE = 3


@dataclass(frozen=True, kw_only=True)
class BenchmarkLimits:
    """How long to measure.

    Attributes:
        seconds_per_side: time that each side is measured for at one shape.
        min_iterations: calls of each side even when they take longer than that, unless they
            take three times as long.
        max_iterations: calls after which quantiles do not change any more.
        block_calls, block_s: least size of a block.
    """

    seconds_per_side: float = 0.5
    min_iterations: int = 10
    max_iterations: int = 500
    block_calls: int = 5
    block_s: float = 0.1


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
    blocks: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [seconds for block in self.blocks for seconds in block]

    def run_block(self, sample: Sample, limits: BenchmarkLimits) -> None:
        model = self.contender.model
        if self.blocks:
            model.run(sample.inputs)
        else:
            with memory_peak(self.platform) as peak:
                model.run(sample.inputs)
            self.added_bytes = peak.num_bytes
        block: list[float] = []
        self.blocks.append(block)
        block_started = time.perf_counter()
        while not self.is_done(limits):
            started = time.perf_counter()
            model.run(sample.inputs)
            ended = time.perf_counter()
            block.append(ended - started)
            if len(block) >= limits.block_calls and ended - block_started >= limits.block_s:
                return

    def is_done(self, limits: BenchmarkLimits) -> bool:
        seconds = self.seconds
        num_calls, elapsed_s = len(seconds), sum(seconds)
        if num_calls >= limits.max_iterations:
            return True
        if num_calls >= limits.min_iterations:
            return elapsed_s >= limits.seconds_per_side
        return num_calls >= _FEWEST and elapsed_s >= _PATIENCE * limits.seconds_per_side

    def timing(self, num_samples: int, limits: BenchmarkLimits) -> SideTiming:
        p50_s = quietest_median(self.blocks, limits.block_calls)
        return SideTiming(
            p50_s=p50_s,
            p95_s=float(np.quantile(self.seconds, 0.95)),
            throughput=num_samples / p50_s,
            peak_memory_bytes=self.contender.held_bytes + self.added_bytes,
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
    """Time any number of sides at one sample's shape, in turns."""
    sides = [_Side(contender, platform) for contender in contenders]
    while not all(side.is_done(limits) for side in sides):
        for side in sides:
            if not side.is_done(limits):
                side.run_block(sample, limits)
    num_samples = sample.sizes.get(recipe.batching.batch_dim or "", 1)
    return [side.timing(num_samples, limits) for side in sides]


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
    )


def quietest_median(blocks: Sequence[Sequence[float]], least_calls: int) -> float:
    """The least median of all blocks of at least so many calls; of any, when all are shorter.

    A block that was cut short is left out: the median of one lucky call says nothing.
    """
    whole = [block for block in blocks if len(block) >= least_calls]
    return min(median(block) for block in whole or blocks if block)
