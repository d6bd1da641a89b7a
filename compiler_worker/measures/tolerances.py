"""The bounds of one engine: the recipe's or the defaults, wider where eager fp32 errs by more."""

import numpy as np

from compiler_worker.measures.default_tolerances import (
    DEFAULT_TOLERANCES,
    DEFAULTS_TOGETHER,
    Together,
)
from compiler_worker.measures.distance import Distance, Float64
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe, Tolerance

EAGER_FACTOR = 10.0
_NOTHING = Distance()
# However ill-conditioned a model: a column that is off by a tenth of its spread is another one.
_LARGEST_COLUMN_BOUND = 0.1
# From one number to the next around zero, where a type is narrower than float32.
_LEAST_STEPS = {Precision.FP16: 2.0**-24, Precision.BF16: 2.0**-133}
_LEAST_STEP = 2.0**-149
# Of usual values: what engines of float32 are off by, see default_tolerances.
_FLOAT32_ERROR = 1e-6


def tolerance_for(
    precision: Precision,
    recipe: Recipe,
    eager_error: Distance | None = None,
    shifted_error: Distance = _NOTHING,
) -> Tolerance:
    """The bounds for one output of an engine.

    Args:
        precision: what the engine computes in.
        recipe: its own tolerance for the precision replaces everything else.
        eager_error: the distance of eager fp32 to the same reference, when it was measured.
        shifted_error: that of eager fp32 with the master's own roundings to eight bits shifted.
    """
    if own := recipe.tolerances.get(precision):
        return _loosened(own, eager_error)
    default = DEFAULT_TOLERANCES[precision]
    if precision is not Precision.FP32 or eager_error is None:
        return default
    widened = _widened(default, eager_error, DEFAULT_TOLERANCES[Precision.FP16], EAGER_FACTOR)
    return _widened(widened, shifted_error, DEFAULT_TOLERANCES[Precision.INT8], 1.0)


def together_for(precision: Precision, recipe: Recipe) -> Together:
    """The bounds of all samples together.

    Those that a recipe leaves open are as much looser than the defaults as its others are, and
    never looser than those of int8.
    """
    default = DEFAULTS_TOGETHER[precision]
    loosest = DEFAULTS_TOGETHER[Precision.INT8]
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

    Args:
        allowed: bounds of all samples together.
        precision: what the engine computes in.
        eager_error: of eager float32, in spreads of each column, [c].
    """
    if precision is not Precision.FP32:
        return np.full_like(eager_error, allowed.column)
    # A recipe's own bound may be larger.
    largest = max(allowed.column, _LARGEST_COLUMN_BOUND)
    return np.clip(EAGER_FACTOR * eager_error, allowed.column, largest)


def unseen_error(precision: Precision, usual: float) -> float:
    """How far any column may be off, root mean square, however little it varies.

    A column may be nothing beside the others: weights of MiniLM's last norm have decayed to 1e-9
    and 1e-33. Narrow types make 0 of it, and that is no fault as far as they have no number for it
    and every float32 engine is off by as much in all other columns.

    Args:
        precision: what the engine computes in.
        usual: size of an element, as `Sizes.middle` has it.
    """
    return min(_LEAST_STEPS.get(precision, _LEAST_STEP), _FLOAT32_ERROR * usual)


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
