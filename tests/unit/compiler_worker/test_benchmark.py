"""Interleaved timing, and memory."""

import subprocess
import sys
from collections.abc import Mapping
from itertools import groupby

import numpy as np

from compiler_worker.benchmark import BenchmarkLimits, benchmark, quietest_median
from compiler_worker.memory import memory_growth, peak_resident_bytes
from compiler_worker.sampling import Sample, SampleVariant
from services.contracts.hardware import Platform
from services.contracts.recipe import Batching, Recipe
from services.contracts.tensors import Array

MIB = 2**20


class Noting:
    """Notes in a shared list that it was called."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self._calls.append(self._name)
        return {}


def sample(**sizes: int) -> Sample:
    return Sample(bucket="b", sizes=sizes, variant=SampleVariant.FULL, inputs={})


def timed(limits: BenchmarkLimits, *samples: Sample, recipe: Recipe | None = None) -> list[str]:
    calls: list[str] = []
    engine, eager = Noting("engine", calls), Noting("eager", calls)
    timings = benchmark(engine, eager, samples, recipe or Recipe(), limits)
    assert [timing.sizes for timing in timings] == [sample.sizes for sample in samples]
    for timing, given in zip(timings, samples, strict=True):
        assert 0 < timing.p50_s <= timing.p95_s
        assert timing.eager_p50_s > 0
        batch = given.sizes.get("batch", 1) if recipe is None else 1
        assert timing.throughput == batch / timing.p50_s
    return calls


def test_blocks_alternate_and_begin_with_a_call_that_is_not_measured() -> None:
    limits = BenchmarkLimits(seconds_per_side=1e9, max_iterations=12, block_calls=5, block_s=0)
    calls = timed(limits, sample(batch=8))
    blocks = [(name, len(list(group))) for name, group in groupby(calls)]
    assert blocks == [("engine", 6), ("eager", 6)] * 2 + [("engine", 3), ("eager", 3)]


def test_the_quietest_whole_block_gives_the_median() -> None:
    disturbed, quiet, cut_short = [5.0, 9.0, 7.0], [2.0, 1.0, 8.0], [0.1]
    assert quietest_median([disturbed, quiet, cut_short], 3) == 2.0
    assert quietest_median([cut_short, [0.3, 0.5], []], 3) == 0.1


def test_every_shape_is_timed() -> None:
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1)
    assert len(timed(limits, sample(batch=1), sample(batch=2))) == 2 * 2 * (1 + 1)


def test_fast_models_stop_at_the_most_iterations() -> None:
    limits = BenchmarkLimits(seconds_per_side=1e9, max_iterations=20)
    assert timed(limits, sample()) == ["engine"] * 21 + ["eager"] * 21


def test_slow_models_are_called_less_often() -> None:
    limits = BenchmarkLimits(seconds_per_side=1e-12, min_iterations=50)
    assert timed(limits, sample()) == ["engine"] * 4 + ["eager"] * 4


def test_a_model_without_a_batch_dimension_counts_calls() -> None:
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1)
    timed(limits, sample(batch=8), recipe=Recipe(batching=Batching(batch_dim=None)))


_KEEPS_64_MIB = """
import numpy as np
from compiler_worker.memory import memory_growth
from services.contracts.hardware import Platform
with memory_growth(Platform.CPU) as growth:
    kept = np.ones(64 * 2**20, dtype=np.uint8)
print(growth.num_bytes)
"""


def test_memory_that_a_block_keeps_is_seen() -> None:
    # A process of its own: this one may hold 64 MiB that it freed before and takes again.
    found = subprocess.run(
        [sys.executable, "-c", _KEEPS_64_MIB], capture_output=True, text=True, check=True
    )
    assert 60 * MIB < int(found.stdout) < 200 * MIB


def test_memory_never_shrinks_below_nothing() -> None:
    kept = [np.ones(32 * MIB, dtype=np.uint8)]
    with memory_growth(Platform.CPU) as growth:
        kept.clear()
    assert growth.num_bytes == 0


def test_the_peak_is_above_what_is_in_use() -> None:
    import psutil

    assert peak_resident_bytes() >= psutil.Process().memory_info().rss - MIB
