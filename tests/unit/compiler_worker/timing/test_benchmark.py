"""Interleaved timing, and memory."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.memory import memory_growth, peak_resident_bytes
from compiler_worker.timing.benchmark import (
    BenchmarkLimits,
    Contender,
    Contest,
    benchmark,
    time_sides,
)
from compiler_worker.timing.paired import FEWEST_PAIRS
from services.contracts.hardware.facts import Platform
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Recipe

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


def timed(
    limits: BenchmarkLimits,
    *samples: Sample,
    recipe: Recipe | None = None,
    has_fallback: bool = False,
) -> list[str]:
    calls: list[str] = []
    engine, eager, fallback = (
        Contender(model=Noting(name, calls), held_bytes=held_mib * MIB)
        for name, held_mib in (("engine", 1), ("eager", 2), ("fallback", 3))
    )
    contest = Contest(
        engines={"e": engine}, eager=eager, fallback=fallback if has_fallback else None
    )
    shapes = [benchmark(contest, sample, recipe or Recipe(), limits) for sample in samples]
    timings = [shape.timing("e") for shape in shapes]
    assert [timing.sizes for timing in timings] == [sample.sizes for sample in samples]
    for timing, given in zip(timings, samples, strict=True):
        batch = given.sizes.get("batch", 1) if recipe is None else 1
        assert timing.eager is not None
        assert timing.eager_p50_s == timing.eager.p50_s
        assert (timing.fallback is not None) is has_fallback
        sides = (timing, timing.eager, timing.fallback)
        for held_mib, side in enumerate(filter(None, sides), start=1):
            assert 0 < side.p50_s <= side.p95_s
            assert side.throughput == batch / side.p50_s
            assert (side.ratio is None) is (has_fallback and side is timing.eager)
            if side.ratio:
                assert side.ratio.low <= side.ratio.median <= side.ratio.high
            assert side.peak_memory_bytes is not None
            assert held_mib * MIB <= side.peak_memory_bytes
    return calls


NUM_ROUNDS = FEWEST_PAIRS + 1


def rounds_of(calls: list[str], num_sides: int, calls_each: int = 2) -> list[tuple[str, ...]]:
    """Who took its turn, round by round."""
    turns = calls[::calls_each]
    assert [name for name in turns for _ in range(calls_each)] == calls
    return [tuple(turns[i : i + num_sides]) for i in range(0, len(turns), num_sides)]


def test_sides_alternate_call_by_call_in_changing_order() -> None:
    """Each measured call comes after one that is not measured."""
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1)
    rounds = rounds_of(timed(limits, sample(batch=8)), 2)
    assert len(rounds) == NUM_ROUNDS
    assert set(rounds) == {("eager", "engine"), ("engine", "eager")}


def test_eager_is_called_less_often_where_the_fallback_is_the_baseline() -> None:
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1)
    calls = timed(limits, sample(batch=8), has_fallback=True)
    assert calls.count("engine") == calls.count("fallback") == 2 * NUM_ROUNDS
    assert calls.count("eager") == 2 * NUM_ROUNDS // 3


def test_long_calls_are_measured_at_once() -> None:
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1, warm_below_s=0)
    calls = timed(limits, sample(batch=8))
    assert len(rounds_of(calls[:4], 2)) == 1, "the first call is never measured"
    assert len(rounds_of(calls[4:], 2, calls_each=1)) == NUM_ROUNDS - 1


def test_every_shape_is_timed() -> None:
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1)
    assert len(timed(limits, sample(batch=1), sample(batch=2))) == 2 * 2 * 2 * NUM_ROUNDS


def test_fast_models_stop_at_the_most_iterations() -> None:
    limits = BenchmarkLimits(seconds_per_side=1e9, max_iterations=20)
    assert 2 * 20 <= timed(limits, sample()).count("engine") <= 2 * 60


class Alternating:
    """Takes ten microseconds or as many as are given, every other time so many times as long.

    So short that a busy machine interrupts hardly one: long ones would be left out for it.
    """

    def __init__(self, longer: float, seconds: float = 1e-5) -> None:
        self._longer = longer
        self._seconds = seconds
        self.num_calls = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.num_calls += 1
        times = self._longer if self.num_calls // 2 % 2 else 1.0
        ends_at = time.perf_counter() + times * self._seconds
        while time.perf_counter() < ends_at:
            pass
        return {}


def test_where_bounds_are_not_close_more_calls_are_made() -> None:
    limits = BenchmarkLimits(seconds_per_side=1e9, max_iterations=10)
    models = [Alternating(longer) for longer in (8.0, 1.0)]
    sides = [Contender(model=model) for model in models]
    wild, _ = time_sides(sides, Platform.CPU, sample(), Recipe(), limits)
    assert [model.num_calls for model in models] == [2 * 30, 2 * 30]
    assert wild.ratio is not None
    assert wild.ratio.high > 4 * wild.ratio.low


def test_where_nothing_is_left_open_no_more_calls_are_made() -> None:
    limits = BenchmarkLimits(seconds_per_side=1e9, max_iterations=20)
    models = [Alternating(1.0, seconds) for seconds in (1e-5, 1e-4)]
    faster, _ = time_sides(
        [Contender(model=model) for model in models], Platform.CPU, sample(), Recipe(), limits
    )
    assert faster.ratio is not None
    assert faster.ratio.median > 2
    # Each measured call after one that is not.
    assert [model.num_calls for model in models] == [2 * 20, 2 * 20]


@pytest.mark.parametrize("num_calls", [1, 50])
def test_slow_models_are_called_as_often_as_is_asked_and_tells_an_interval(num_calls: int) -> None:
    limits = BenchmarkLimits(seconds_per_side=1e-12, min_iterations=num_calls)
    assert timed(limits, sample()).count("engine") == 2 * max(num_calls, NUM_ROUNDS)


@pytest.mark.parametrize("num_sides", [2, 3, 4, 5])
def test_each_side_follows_each_other_one(num_sides: int) -> None:
    calls: list[str] = []
    sides = [Contender(model=Noting(str(number), calls)) for number in range(num_sides)]
    time_sides(sides, Platform.CPU, sample(), Recipe(), BenchmarkLimits(seconds_per_side=0))
    rounds = rounds_of(calls, num_sides)
    followed = {pair for each in rounds for pair in pairwise(each)}
    assert len(followed) == num_sides * (num_sides - 1)
    assert {each[0] for each in rounds} == set(calls)


def test_a_model_without_a_batch_dimension_counts_calls() -> None:
    limits = BenchmarkLimits(seconds_per_side=0, min_iterations=1)
    timed(limits, sample(batch=8), recipe=Recipe(batching=Batching(batch_dim=None)))


_KEEPS_64_MIB = """
import numpy as np
from compiler_worker.memory import memory_growth
from services.contracts.hardware.facts import Platform
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


_GIVES_64_MIB_BACK = """
import numpy as np
from compiler_worker.memory import memory_growth, memory_peak
from services.contracts.hardware.facts import Platform
before = np.ones(96 * 2**20, dtype=np.uint8)
del before
for measure in (memory_peak, memory_growth):
    with measure(Platform.CPU) as growth:
        np.ones(64 * 2**20, dtype=np.uint8)
    print(growth.num_bytes)
"""


def test_memory_that_a_block_gives_back_counts_for_its_peak() -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this kernel has no /proc/self/clear_refs")
    found = subprocess.run(
        [sys.executable, "-c", _GIVES_64_MIB_BACK], capture_output=True, text=True, check=True
    )
    peak, growth = map(int, found.stdout.split())
    assert growth < 32 * MIB
    assert 60 * MIB < peak < 90 * MIB


def test_the_peak_is_above_what_is_in_use() -> None:
    import psutil

    assert peak_resident_bytes() >= psutil.Process().memory_info().rss - MIB
