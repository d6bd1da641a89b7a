"""What a model's runs take on each generation, from the timings of its proven engines."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion, PublishedEngine, Timing
from services.contracts.model.recipe import Bucket
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.selection import select
from services.contracts.selection.speed_gate import deciding, is_wild
from services.engines.shapes import smallest_holding, volume
from services.replica.batching.run_shapes import elements_of


class MeasuredSide(StrEnum):
    """What computes: the engine that selection takes, the fallback, or eager PyTorch."""

    ENGINE = "engine"
    FALLBACK = "fallback"
    EAGER = "eager"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds of a run over its elements (rows times lengths), as they were measured.

    Attributes:
        name: what computes, for people.
        elements, seconds: measured points, rising.
        pads_to_largest: a run computes the largest sizes of its bucket, whatever it is given.
        is_wild: timed on a machine that was too busy to say how fast it is.
    """

    name: str
    elements: tuple[int, ...]
    seconds: tuple[float, ...]
    pads_to_largest: bool = False
    is_wild: bool = False

    @classmethod
    def through(
        cls, name: str, points: Iterable[tuple[int, float]], *, pads_to_largest: bool = False
    ) -> "Curve | None":
        """The curve through points of elements and seconds; None through none.

        A larger run that was measured as quicker takes as long as the smaller one.

        Args:
            name: of the curve.
            points: in any order.
            pads_to_largest: see the curve.
        """
        found: dict[int, list[float]] = {}
        for elements, seconds in points:
            found.setdefault(elements, []).append(seconds)
        if not found:
            return None
        sizes = sorted(found)
        means = [float(np.mean(found[size])) for size in sizes]
        rising = np.maximum.accumulate(means).tolist()
        return cls(
            name=name,
            elements=tuple(sizes),
            seconds=tuple(rising),
            pads_to_largest=pads_to_largest,
        )

    def run_s(self, num_elements: int) -> float:
        """Seconds of a run: between points on a line, beyond the largest in proportion."""
        place = bisect_left(self.elements, num_elements)
        if place == len(self.elements):
            return self.seconds[-1] * num_elements / self.elements[-1]
        if not place:
            return self.seconds[0]
        below = self.elements[place - 1]
        part = (num_elements - below) / (self.elements[place] - below)
        return self.seconds[place - 1] + part * (self.seconds[place] - self.seconds[place - 1])

    @property
    def fixed_elements(self) -> float:
        """Elements that take as long as what a run costs beside them; infinite at one point."""
        more = self.elements[-1] - self.elements[0]
        slope_s = (self.seconds[-1] - self.seconds[0]) / more if more else 0.0
        if not slope_s:
            return float("inf")
        return max(self.seconds[0] / slope_s - self.elements[0], 0.0)


def measured_curves(
    registry: Registry, version: ModelVersion, precision: Precision | None = None
) -> dict[str, dict[MeasuredSide, Curve]]:
    """Curves by generation and side.

    Args:
        registry: of the store.
        version: of the model.
        precision: of the engines that may serve; None for any.

    Returns:
        Only generations on which an engine of the version was proven and timed. A side is left
        out where it was not timed, and the engine where none would serve.
    """
    engines = registry.engines(version.master.digest)
    runs = registry.joint_runs(version.master.digest)
    chosen = [e for e in engines if precision in (None, e.manifest.key.precision)]
    curves: dict[str, dict[MeasuredSide, Curve]] = {}
    devices = {e.proof.device.generation: e.proof.device for e in engines if e.proof.device}
    for generation, device in devices.items():
        timed = {
            e.digest: deciding(engine_history(e, generation, runs))
            for e in engines
            if e.proof.device and e.proof.device.generation == generation
        }
        engine = select(chosen, device, version=version, runs=runs).engine
        found = _sides(engine, timed)
        if found:
            curves[generation] = found
    return curves


def _sides(
    engine: PublishedEngine | None, timed: Mapping[str, Sequence[Timing]]
) -> dict[MeasuredSide, Curve]:
    """The engine's own run has all sides; without an engine any run that has the fallback."""
    own = timed.get(engine.digest, ()) if engine else ()
    others = max(timed.values(), key=lambda each: sum(t.fallback is not None for t in each))
    best = own or others
    sides = {
        MeasuredSide.ENGINE: _engine_curve(engine, own) if engine else None,
        MeasuredSide.FALLBACK: Curve.through(
            "fallback", ((_size(t), t.fallback.p50_s) for t in best if t.fallback)
        ),
        MeasuredSide.EAGER: Curve.through("eager", ((_size(t), t.eager_p50_s) for t in best)),
    }
    doubt = is_wild(best)
    return {side: replace(curve, is_wild=doubt) for side, curve in sides.items() if curve}


def _engine_curve(engine: PublishedEngine, timings: Sequence[Timing]) -> Curve | None:
    key = engine.manifest.key
    is_cpu = Generation.parse(key.generation).platform is Platform.CPU
    pads_to_largest = key.kind.pads_to_largest(is_cpu=is_cpu)
    size = partial(_computed, key.buckets) if pads_to_largest else _size
    points = ((size(t), t.p50_s) for t in timings)
    return Curve.through(f"{key.kind} {key.precision}", points, pads_to_largest=pads_to_largest)


def _computed(buckets: Sequence[Bucket], timing: Timing) -> int:
    """What ran, whatever was asked for: all of the bucket."""
    return volume(buckets[smallest_holding(buckets, timing.sizes)])


def _size(timing: Timing) -> int:
    return elements_of(timing.sizes)
