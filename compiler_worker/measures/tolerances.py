"""How far an engine's outputs may lie from the float64 reference, and why.

Where the figures come from: one sentence encoder, 600 real sentences, eleven engines,
largest distance of any sample to a float64 run of the same weights; below the line, the
typed graphs of the same encoder on real sentences and drawn words, up to 128 tokens,
calibrated on 64 other such rows, and those of a ResNet-50, whichever is larger.

    engine                      rel L2         1 - cosine   max |error| / max |ref|
    fp32 (eager, four engines)  1.0e-6         8e-13        1e-6
    fp16                        1.6e-3         1.2e-6       2e-3
    bf16 (autocast to full)     1.5e-2         1.1e-4       1.7e-2
    -------------------------------------------------------------------------
    int8, weights only          5.5e-2         1.5e-3
    int8                        1.6e-1         1.3e-2       3.2e-1
    fp8 (E4M3)                  1.8e-1         8e-3

The bounds are those distances times 1.1 to 10. An fp32 engine may also err by ten times
what eager PyTorch itself errs in fp32 on the same inputs, because the error of a sum grows
with its length and depth: such a bound carries over to other models, a fixed one does not.
It never grows past the fp16 bound, so an ill-conditioned model cannot wave a fault through.

A master that rounds values to eight bits itself makes a step of the least shift: of 4096 rows of a
small one, ONNX Runtime's int8 kernels (which take biases in steps of their products) answer one in
fifty otherwise, by up to 2.4e-2 in rel L2. Its fp32 engine may err as eager PyTorch does when
all that is rounded lies a hundredth of a step higher or lower, up to the bound of int8.

Bounds of eight bits cannot say that a model is still good, only that its graph is not broken:
static rounding by smallest and largest value (1 - cosine 1.2e-1 on the same sentences) fails
them. Who asks for int8 or fp8 should name a task in the recipe: an overlap of the ten nearest
of 0.92 and more goes with these distances.
"""

from dataclasses import dataclass

import numpy as np

from compiler_worker.measures.distance import Distance, Float64
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe, Tolerance

DEFAULT_TOLERANCES: dict[Precision, Tolerance] = {
    Precision.FP32: Tolerance(rel_l2=1e-5, max_abs=1e-5, cosine_distance=1e-9),
    Precision.FP16: Tolerance(rel_l2=5e-3, max_abs=1e-2, cosine_distance=1e-5),
    Precision.BF16: Tolerance(rel_l2=2e-2, max_abs=4e-2, cosine_distance=2e-4),
    Precision.INT8_WEIGHT_ONLY: Tolerance(rel_l2=1e-1, max_abs=2e-1, cosine_distance=5e-3),
    Precision.INT8: Tolerance(rel_l2=2e-1, max_abs=4e-1, cosine_distance=2e-2),
    Precision.FP8: Tolerance(rel_l2=2e-1, max_abs=4e-1, cosine_distance=2e-2),
}


@dataclass(frozen=True, kw_only=True)
class Together:
    """Bounds of all samples of an output together, none left open; see `recipe.Tolerance`."""

    column: float
    gain: float
    agreement: float


DEFAULTS_TOGETHER: dict[Precision, Together] = {
    Precision.FP32: Together(column=1e-3, gain=1e-4, agreement=0.999),
    Precision.FP16: Together(column=5e-2, gain=3e-3, agreement=0.99),
    Precision.BF16: Together(column=0.2, gain=1e-2, agreement=0.97),
    Precision.INT8_WEIGHT_ONLY: Together(column=0.4, gain=1.5e-2, agreement=0.95),
    Precision.INT8: Together(column=0.6, gain=5e-2, agreement=0.9),
    Precision.FP8: Together(column=0.6, gain=5e-2, agreement=0.9),
}
EAGER_FACTOR = 10.0
_NOTHING = Distance()
# However ill-conditioned a model: a column that is off by a tenth of its spread is another one.
_LARGEST_COLUMN_BOUND = 0.1


def tolerance_for(
    precision: Precision,
    recipe: Recipe,
    eager_error: Distance | None = None,
    shaken_error: Distance = _NOTHING,
) -> Tolerance:
    """The bounds for one output of an engine.

    Args:
        precision: what the engine computes in.
        recipe: its own tolerance for the precision wins over everything else.
        eager_error: the distance of eager fp32 to the same reference, when it was measured.
        shaken_error: that of eager fp32 with the master's own roundings to eight bits shifted.
    """
    if own := recipe.tolerances.get(precision):
        return _loosened(own, eager_error)
    default = DEFAULT_TOLERANCES[precision]
    if precision is not Precision.FP32 or eager_error is None:
        return default
    widened = _widened(default, eager_error, DEFAULT_TOLERANCES[Precision.FP16], EAGER_FACTOR)
    return _widened(widened, shaken_error, DEFAULT_TOLERANCES[Precision.INT8], 1.0)


def together_for(precision: Precision, recipe: Recipe) -> Together:
    """The bounds of all samples together.

    Those that a recipe leaves open are as much looser than the defaults as its others are, and
    never looser than those of int8.
    """
    default, loosest = DEFAULTS_TOGETHER[precision], DEFAULTS_TOGETHER[Precision.INT8]
    own = recipe.tolerances.get(precision)
    if own is None:
        return default
    looser = max(own.rel_l2 / DEFAULT_TOLERANCES[precision].rel_l2, 1.0)
    agreement = max(1 - (1 - default.agreement) * looser, loosest.agreement)
    return Together(
        column=own.column or min(default.column * looser, loosest.column),
        gain=own.gain or min(default.gain * looser, loosest.gain),
        agreement=own.agreement or agreement,
    )


def column_bound(allowed: Together, precision: Precision, eager_error: Float64) -> Float64:
    """The bound of each column at which eager fp32 itself errs by so many of its spreads.

    Only fp32 engines are given what eager errs: a spread that is rounding noise in half precision
    is one that its engine does not show.
    """
    if precision is not Precision.FP32:
        return np.full_like(eager_error, allowed.column)
    # A recipe's own bound may be larger.
    largest = max(allowed.column, _LARGEST_COLUMN_BOUND)
    return np.clip(EAGER_FACTOR * eager_error, allowed.column, largest)


def _loosened(own: Tolerance, eager_error: Distance | None) -> Tolerance:
    """A recipe's own bounds, as loose as eager's error makes them where it asks for that."""
    if own.relative_to_eager is None or eager_error is None:
        return own
    loosest = DEFAULT_TOLERANCES[Precision.BF16]
    ceiling = Tolerance(
        rel_l2=max(own.rel_l2, loosest.rel_l2),
        max_abs=max(own.max_abs, loosest.max_abs),
        cosine_distance=max(own.cosine_distance, loosest.cosine_distance),
    )
    return _widened(own, eager_error, ceiling, own.relative_to_eager)


def _widened(floor: Tolerance, error: Distance, ceiling: Tolerance, factor: float) -> Tolerance:
    # 1 - cosine is quadratic in the error, so its factor is squared.
    return Tolerance(
        rel_l2=_clamp(factor * error.rel_l2, floor.rel_l2, ceiling.rel_l2),
        max_abs=_clamp(factor * error.max_abs, floor.max_abs, ceiling.max_abs),
        cosine_distance=_clamp(
            factor**2 * error.cosine_distance, floor.cosine_distance, ceiling.cosine_distance
        ),
    )


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
