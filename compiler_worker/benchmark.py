"""Latency of an engine beside eager PyTorch: interleaved, at the same shapes, in one process.

Blocks of calls alternate, so that a change of clock or load meets both sides alike. The
first call of a block is not measured: it warms up, and the other side's threads still spin for
work then, which would make a fast model look many times slower. The median is that of each
side's quietest block, because other work on the machine slows eager's many small kernels
far more than an engine's few; the 95th percentile is over all calls.

Both take and give numpy arrays, as a replica does; eager is the master's own float32 graph,
whatever the engine's precision, so that speed-ups of all engines of a model can be compared.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from compiler_worker.models import Model
from compiler_worker.sampling import Sample
from services.contracts.manifest import Timing
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


@dataclass
class _Side:
    model: Model
    blocks: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [seconds for block in self.blocks for seconds in block]

    def run_block(self, sample: Sample, limits: BenchmarkLimits) -> None:
        self.model.run(sample.inputs)
        block: list[float] = []
        self.blocks.append(block)
        block_started = time.perf_counter()
        while not self.is_done(limits):
            started = time.perf_counter()
            self.model.run(sample.inputs)
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


def benchmark(
    engine: Model,
    eager: Model,
    samples: Sequence[Sample],
    recipe: Recipe,
    limits: BenchmarkLimits,
) -> tuple[Timing, ...]:
    """Time an engine beside eager, at each sample's shape."""
    return tuple(_time_at(sample, engine, eager, recipe, limits) for sample in samples)


def _time_at(
    sample: Sample, engine: Model, eager: Model, recipe: Recipe, limits: BenchmarkLimits
) -> Timing:
    sides = (_Side(engine), _Side(eager))
    while not all(side.is_done(limits) for side in sides):
        for side in sides:
            if not side.is_done(limits):
                side.run_block(sample, limits)
    timed, compared = sides
    p50_s = quietest_median(timed.blocks, limits.block_calls)
    return Timing(
        bucket=sample.bucket,
        sizes=sample.sizes,
        p50_s=p50_s,
        p95_s=float(np.quantile(timed.seconds, 0.95)),
        throughput=sample.sizes.get(recipe.batching.batch_dim or "", 1) / p50_s,
        eager_p50_s=quietest_median(compared.blocks, limits.block_calls),
    )


def quietest_median(blocks: Sequence[Sequence[float]], least_calls: int) -> float:
    """The least median of all blocks of at least so many calls; of any, when all are shorter.

    A block that was cut short is left out: the median of one lucky call says nothing.
    """
    whole = [block for block in blocks if len(block) >= least_calls]
    return min(median(block) for block in whole or blocks if block)
