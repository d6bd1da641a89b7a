"""How far an engine's outputs may lie from the float64 reference, and why.

Where the figures come from: one sentence encoder, 600 real sentences, eleven engines,
largest distance of any sample to a float64 run of the same weights.

    engine                      rel L2    1 - cosine   max |error| / max |ref|
    fp32 (eager, four engines)  1.0e-6    8e-13        1e-6
    fp16                        1.6e-3    1.2e-6       2e-3
    bf16 (autocast to full)     1.5e-2    1.1e-4       1.7e-2

The bounds are those distances times 1.3 to 10. An fp32 engine may also err by ten times
what eager PyTorch itself errs in fp32 on the same inputs, because the error of a sum grows
with its length and depth: such a bound carries over to other models, a fixed one does not.
It never grows past the fp16 bound, so an ill-conditioned model cannot wave a fault through.
"""

from compiler_worker.distance import Distance
from services.contracts.kinds import Precision
from services.contracts.recipe import Recipe, Tolerance

DEFAULT_TOLERANCES: dict[Precision, Tolerance] = {
    Precision.FP32: Tolerance(rel_l2=1e-5, max_abs=1e-5, cosine_distance=1e-9),
    Precision.FP16: Tolerance(rel_l2=5e-3, max_abs=1e-2, cosine_distance=1e-5),
    Precision.BF16: Tolerance(rel_l2=2e-2, max_abs=4e-2, cosine_distance=2e-4),
}
EAGER_FACTOR = 10.0


def tolerance_for(
    precision: Precision, recipe: Recipe, eager_error: Distance | None = None
) -> Tolerance:
    """The bounds for one output of an engine.

    Args:
        precision: what the engine computes in.
        recipe: its own tolerance for the precision wins over everything else.
        eager_error: the distance of eager fp32 to the same reference, when it was measured.
    """
    if precision in recipe.tolerances:
        return recipe.tolerances[precision]
    default = DEFAULT_TOLERANCES[precision]
    if precision is not Precision.FP32 or eager_error is None:
        return default
    return _widened(default, eager_error, DEFAULT_TOLERANCES[Precision.FP16])


def _widened(floor: Tolerance, error: Distance, ceiling: Tolerance) -> Tolerance:
    # 1 - cosine is quadratic in the error, so its factor is squared.
    return Tolerance(
        rel_l2=_clamp(EAGER_FACTOR * error.rel_l2, floor.rel_l2, ceiling.rel_l2),
        max_abs=_clamp(EAGER_FACTOR * error.max_abs, floor.max_abs, ceiling.max_abs),
        cosine_distance=_clamp(
            EAGER_FACTOR**2 * error.cosine_distance, floor.cosine_distance, ceiling.cosine_distance
        ),
    )


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
